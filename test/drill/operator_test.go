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

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
)

// The drills in this file run operator commands while the authority dies.

// api sends an API request, named by noun and verb.
func (n *Node) api(ctx context.Context, verb string, question, answer any) error {
	if answer == nil {
		answer = new(json.RawMessage)
	}
	return n.Ask(ctx, api.SubjectAPI+"."+verb, question, answer)
}

// insist sends an API request to one running node after the other until one answers.
func insist(t *testing.T, ctx context.Context, cl *Cluster, verb string, question, answer any) {
	t.Helper()
	err := until(ctx, verb, func() (err error) {
		for _, n := range cl.Running() {
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

// requeuePage is the answer to one page of a requeue.
type requeuePage struct {
	Items []struct{ Result, Error string }
	Next  uint64
}

// requeueAll requests pages of a requeue until no dead letter is left. The authority is
// killed during the second page, requested elsewhere, and during the fourth, requested
// from itself.
func requeueAll(t *testing.T, ctx context.Context, cl *Cluster, from, to string) {
	t.Helper()
	question := map[string]any{"queue": from, "limit": 40}
	if to != "" {
		question["to"] = to
	}
	for part := 1; ; part++ {
		authority, err := cl.Authority(ctx)
		if err != nil {
			backoff.Sleep(ctx, 50*time.Millisecond)
			part--
			continue
		}
		asked := authority
		if part != 4 {
			for _, n := range cl.Running() {
				if n != authority {
					asked = n
				}
			}
		}
		var killing sync.WaitGroup
		if part == 2 || part == 4 {
			killing.Go(func() {
				backoff.Sleep(ctx, time.Duration(part)*5*time.Millisecond)
				cl.Kill(authority)
			})
		}
		var round requeuePage
		err = asked.api(ctx, "dlq.requeue", question, &round)
		killing.Wait()
		done := map[string]int{}
		for _, i := range round.Items {
			done[i.Result]++
		}
		t.Logf("%s, page %d at %s: %v, %v", from, part, asked.Name, done, err)
		if part == 2 || part == 4 {
			restart(t, ctx, cl, authority)
		}
		if err == nil && len(round.Items) == 0 && part > 4 {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(context.Cause(ctx))
		}
	}
}

// TestDrill_Requeue requeues 500 dead letters, some in place and some into another
// queue, while the authority is killed four times. The queues are paused meanwhile, so
// that no run is repeated because of a killed node, and each job must run once.
func TestDrill_Requeue(t *testing.T) {
	soakTime(t)
	cl, ctx := newHarness(t, 2*time.Minute)
	if err := cl.AddQueue(ctx, "other", 0); err != nil {
		t.Fatal(err)
	}
	for _, queue := range []string{"free", "limited", "other"} {
		insist(t, ctx, cl, "queue.pause", map[string]any{"name": queue}, nil)
	}
	loads := []*Load{{Queue: "free", Jobs: 300, Parallel: 16}, {Queue: "limited", Jobs: 200, Parallel: 16}}
	publish(t, ctx, cl, loads...)
	for _, l := range loads {
		cancelAll(t, ctx, cl, l.Queue, l.Jobs)
	}
	requeueAll(t, ctx, cl, "free", "")
	requeueAll(t, ctx, cl, "limited", "other")
	for _, queue := range []string{"free", "other"} {
		work(t, cl, queue, 1, 16, 0)
		insist(t, ctx, cl, "queue.resume", map[string]any{"name": queue}, nil)
	}
	counts(t, ctx, cl, "free", map[string]int{"completed": 300})
	counts(t, ctx, cl, "other", map[string]int{"completed": 200})
	runs := witnessed(t, cl)
	if len(runs) != 500 {
		t.Errorf("%d jobs ran, want 500", len(runs))
	}
	for id, n := range runs {
		if n != 1 {
			t.Errorf("job %s ran %d times", id, n)
		}
	}
}

// cancelAll cancels the waiting jobs of a queue, which makes them dead letters.
func cancelAll(t *testing.T, ctx context.Context, cl *Cluster, queue string, jobs int) {
	t.Helper()
	counts(t, ctx, cl, queue, map[string]int{"waiting": jobs})
	var page struct{ Jobs []struct{ ID job.ID } }
	insist(t, ctx, cl, "job.list", map[string]any{"queues": []string{queue}, "states": []string{"waiting"}, "limit": 1000, "brief": true}, &page)
	var all sync.WaitGroup
	for part := range 8 {
		all.Go(func() {
			for i := part; i < len(page.Jobs); i += 8 {
				if err := cl.Nodes[i%3].api(ctx, "job.cancel", map[string]any{"id": page.Jobs[i].ID}, nil); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	err := until(ctx, "all dead letters are published", func() error {
		var stats struct{ Count int }
		err := cl.Nodes[0].api(ctx, "dlq.stats", map[string]any{"queue": queue}, &stats)
		if err == nil && stats.Count != jobs {
			err = fmt.Errorf("there are %d dead letters", stats.Count)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// counts waits until a queue has these numbers of jobs by state.
func counts(t *testing.T, ctx context.Context, cl *Cluster, queue string, want map[string]int) {
	t.Helper()
	err := until(ctx, fmt.Sprint(queue, " holds ", want), func() error {
		var q struct{ Counts map[string]int }
		err := errors.New("no node is running")
		for _, n := range cl.Running() {
			err = n.api(ctx, "queue.show", map[string]any{"name": queue}, &q)
		}
		for state, n := range q.Counts {
			if err == nil && n != want[state] {
				err = fmt.Errorf("the queue has %v", q.Counts)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// witnessed returns the number of recorded runs of each job.
func witnessed(t *testing.T, cl *Cluster) map[string]int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(cl.Dir, "*.witness"))
	if err != nil {
		t.Fatal(err)
	}
	ran := map[string]int{}
	for _, f := range files {
		runs, err := ReadWitness(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range runs {
			ran[r.Job]++
		}
	}
	return ran
}

// TestDrill_Cron lets an entry tick every second for half a minute, in which the
// authority is killed twice. There must be one job for each second, and each must have
// been run.
func TestDrill_Cron(t *testing.T) {
	soakTime(t)
	cl, ctx := newHarness(t, 3*time.Minute)
	work(t, cl, "free", 2, 8, 0)
	var entry struct {
		Upcoming []time.Time
		Last     time.Time
		Fired    int
		Missed   int `json:"missed_count"`
	}
	insist(t, ctx, cl, "cron.add", map[string]any{"name": "tick", "schedule": "@every 1s", "queue": "free", "job": map[string]any{"params": map[string]any{}}}, &entry)
	first := entry.Upcoming[0]
	for range 2 {
		backoff.Sleep(ctx, 10*time.Second)
		restart(t, ctx, cl, killAuthority(t, ctx, cl))
	}
	backoff.Sleep(ctx, 10*time.Second)
	insist(t, ctx, cl, "cron.pause", map[string]any{"name": "tick"}, &entry)
	if ticks := int(entry.Last.Sub(first)/time.Second) + 1; ticks != entry.Fired || ticks < 30 || entry.Missed != 0 {
		t.Errorf("%d ticks, %d missed, in the %d seconds from %s to %s", entry.Fired, entry.Missed, ticks, first, entry.Last)
	}
	counts(t, ctx, cl, "free", map[string]int{"completed": entry.Fired})
	ran := witnessed(t, cl)
	for at := first; !at.After(entry.Last); at = at.Add(time.Second) {
		if ran[job.TickID("tick", at).String()] == 0 {
			t.Errorf("no worker ran the tick of %s", at)
		}
	}
	if len(ran) != entry.Fired {
		t.Errorf("%d jobs ran for %d ticks", len(ran), entry.Fired)
	}
	t.Logf("%d ticks from %s to %s", entry.Fired, first, entry.Last)
}
