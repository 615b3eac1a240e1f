package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
)

// This file drills what an operator asks of a yard while its authority dies.

// api asks a node by noun and verb.
func (n *Node) api(ctx context.Context, verb string, question, answer any) error {
	if answer == nil {
		answer = new(json.RawMessage)
	}
	return n.Ask(ctx, cluster.SubjectAPI+"."+verb, question, answer)
}

// insist asks nodes that run, one after another, until one answers.
func insist(t *testing.T, ctx context.Context, y *Yard, verb string, question, answer any) {
	t.Helper()
	err := until(ctx, verb, func() (err error) {
		for _, n := range y.Up() {
			if err = n.api(ctx, verb, question, answer); err == nil {
				return nil
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// letterRound is one part of a requeue.
type letterRound struct {
	Items []struct{ Result, Error string }
	Next  uint64
}

// requeueAll asks for parts of a requeue until no letter is left. The authority
// is killed while the second part and while the fourth are under way, once
// asked elsewhere and once itself.
func requeueAll(t *testing.T, ctx context.Context, y *Yard, from, to string) {
	t.Helper()
	question := map[string]any{"queue": from, "limit": 40}
	if to != "" {
		question["to"] = to
	}
	for part := 1; ; part++ {
		authority, err := y.Authority(ctx)
		if err != nil {
			pause(ctx, 50*time.Millisecond)
			part--
			continue
		}
		asked := authority
		if part != 4 {
			for _, n := range y.Up() {
				if n != authority {
					asked = n
				}
			}
		}
		var killing sync.WaitGroup
		if part == 2 || part == 4 {
			killing.Go(func() {
				pause(ctx, time.Duration(part)*5*time.Millisecond)
				y.Kill(authority)
			})
		}
		var round letterRound
		err = asked.api(ctx, "dlq.requeue", question, &round)
		killing.Wait()
		done := map[string]int{}
		for _, i := range round.Items {
			done[i.Result]++
		}
		t.Logf("%s, part %d at %s: %v, %v", from, part, asked.Name, done, err)
		if part == 2 || part == 4 {
			restart(t, ctx, y, authority)
		}
		if err == nil && len(round.Items) == 0 && part > 4 {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(context.Cause(ctx))
		}
	}
}

// TestDrill_Requeue requeues 500 dead letters, some in place and some into
// another queue, while the authority is killed four times. Their queues are
// paused, so that no run is repeated because its node died: each job runs once.
func TestDrill_Requeue(t *testing.T) {
	soak(t)
	y, ctx := stage(t, 2*time.Minute)
	if err := y.AddQueue(ctx, "other", 0); err != nil {
		t.Fatal(err)
	}
	for _, queue := range []string{"free", "limited", "other"} {
		insist(t, ctx, y, "queue.pause", map[string]any{"name": queue}, nil)
	}
	loads := []*Load{{Queue: "free", Jobs: 300, Parallel: 16}, {Queue: "limited", Jobs: 200, Parallel: 16}}
	publish(t, ctx, y, loads...)
	for _, l := range loads {
		cancelAll(t, ctx, y, l.Queue, l.Jobs)
	}
	requeueAll(t, ctx, y, "free", "")
	requeueAll(t, ctx, y, "limited", "other")
	for _, queue := range []string{"free", "other"} {
		work(t, y, queue, 1, 16, 0)
		insist(t, ctx, y, "queue.resume", map[string]any{"name": queue}, nil)
	}
	counts(t, ctx, y, "free", map[string]int{"completed": 300})
	counts(t, ctx, y, "other", map[string]int{"completed": 200})
	runs := witnessed(t, y)
	if len(runs) != 500 {
		t.Errorf("%d jobs ran, want 500", len(runs))
	}
	for id, n := range runs {
		if n != 1 {
			t.Errorf("job %s ran %d times", id, n)
		}
	}
}

// cancelAll makes dead letters of a queue's waiting jobs.
func cancelAll(t *testing.T, ctx context.Context, y *Yard, queue string, jobs int) {
	t.Helper()
	counts(t, ctx, y, queue, map[string]int{"waiting": jobs})
	var page struct{ Jobs []struct{ ID job.ID } }
	insist(t, ctx, y, "job.list", map[string]any{"queue": queue, "state": "waiting", "page_size": 1000, "brief": true}, &page)
	var all sync.WaitGroup
	for part := range 8 {
		all.Go(func() {
			for i := part; i < len(page.Jobs); i += 8 {
				if err := y.Nodes[i%3].api(ctx, "job.cancel", map[string]any{"id": page.Jobs[i].ID}, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	err := until(ctx, "all letters are written", func() error {
		var stats struct{ Count int }
		err := y.Nodes[0].api(ctx, "dlq.stats", map[string]any{"queue": queue}, &stats)
		if err == nil && stats.Count != jobs {
			err = fmt.Errorf("there are %d", stats.Count)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// counts waits until all jobs of a queue are in the states that are wanted.
func counts(t *testing.T, ctx context.Context, y *Yard, queue string, want map[string]int) {
	t.Helper()
	err := until(ctx, fmt.Sprint(queue, " holds ", want), func() error {
		var q struct{ Counts map[string]int }
		err := errors.New("no node runs")
		for _, n := range y.Up() {
			err = n.api(ctx, "queue.show", map[string]any{"name": queue}, &q)
		}
		for state, n := range q.Counts {
			if err == nil && n != want[state] {
				err = fmt.Errorf("it holds %v", q.Counts)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// witnessed counts the runs of each job.
func witnessed(t *testing.T, y *Yard) map[job.ID]int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(y.Dir, "*.witness"))
	if err != nil {
		t.Fatal(err)
	}
	ran := map[job.ID]int{}
	for _, f := range files {
		runs, err := readWitness(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range runs {
			ran[r.job]++
		}
	}
	return ran
}

// TestDrill_Cron: an entry of every second ticks for half a minute, in which the
// authority is killed twice. No second is left out, and each is one job that
// somebody has seen run.
func TestDrill_Cron(t *testing.T) {
	soak(t)
	y, ctx := stage(t, 3*time.Minute)
	work(t, y, "free", 2, 8, 0)
	var entry struct {
		Upcoming []time.Time
		Last     time.Time
		Fired    int
		Missed   int `json:"missed_count"`
	}
	insist(t, ctx, y, "cron.add", map[string]any{"name": "tick", "schedule": "@every 1s", "queue": "free", "job": map[string]any{"params": map[string]any{}}}, &entry)
	first := entry.Upcoming[0]
	for range 2 {
		pause(ctx, 10*time.Second)
		restart(t, ctx, y, killAuthority(t, ctx, y))
	}
	pause(ctx, 10*time.Second)
	insist(t, ctx, y, "cron.pause", map[string]any{"name": "tick"}, &entry)
	if ticks := int(entry.Last.Sub(first)/time.Second) + 1; ticks != entry.Fired || ticks < 30 || entry.Missed != 0 {
		t.Errorf("%d ticks, %d missed, in the %d seconds from %s to %s", entry.Fired, entry.Missed, ticks, first, entry.Last)
	}
	counts(t, ctx, y, "free", map[string]int{"completed": entry.Fired})
	ran := witnessed(t, y)
	for at := first; !at.After(entry.Last); at = at.Add(time.Second) {
		if ran[job.TickID("tick", at)] == 0 {
			t.Errorf("nobody saw the tick of %s run", at)
		}
	}
	if len(ran) != entry.Fired {
		t.Errorf("%d jobs ran of %d ticks", len(ran), entry.Fired)
	}
	t.Logf("%d ticks from %s to %s", entry.Fired, first, entry.Last)
}
