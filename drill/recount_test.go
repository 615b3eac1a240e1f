package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"yardmaster/cluster"
	"yardmaster/internal/recount"
	"yardmaster/job"
)

// This file holds the story that a yard tells against what it knows.

// account reads all that a yard has told, and requires that it comes to what
// every node shows: of authority and backlog, of each job, and of the ledger
// itself.
func account(t *testing.T, ctx context.Context, y *Yard, loads ...*Load) *recount.Book {
	t.Helper()
	began := time.Now()
	book, err := y.Recount(ctx)
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := y.RequireSameEnds(ctx, book, loads...)
	if err != nil {
		t.Error(err)
	}
	index, err := y.RequireSameLedger(ctx)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d events told agree with %d jobs and %d snapshots, ledgers are one at index %d (%s)",
		book.Number(), jobs, len(y.Up()), index, time.Since(began).Round(time.Millisecond))
	return book
}

// caller runs dispatches of its own through yard.exec, as a program that keeps
// a backlog of its own does, and remembers how far it was told each has come.
type caller struct {
	name  string
	state map[string]string // by request id
}

// run takes one dispatch after another through all its steps until ctx ends.
func (c *caller) run(ctx context.Context, y *Yard) error {
	c.state = make(map[string]string)
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprintf("%s-%d", c.name, i)
		steps := []struct{ command, becomes string }{
			{fmt.Sprintf(`{"command":"QueueDispatch","request_id":%q,"target":"hall","metadata":{"i":%d}}`, id, i), recount.Pending},
			{fmt.Sprintf(`{"command":"MarkNotified","request_id":%q,"channel":"bell"}`, id), recount.Notified},
			{fmt.Sprintf(`{"command":"MarkDelivered","request_id":%q}`, id), recount.Delivered},
		}
		switch i % 4 {
		case 1: // fails before anybody was notified
			steps = append(steps[:1], struct{ command, becomes string }{fmt.Sprintf(`{"command":"MarkFailed","request_id":%q,"reason":"no bell"}`, id), recount.Failed})
		case 2:
			steps[2] = struct{ command, becomes string }{fmt.Sprintf(`{"command":"MarkFailed","request_id":%q,"reason":"no answer"}`, id), recount.Failed}
		case 3: // left as it is
			steps = steps[:2]
		}
		for _, s := range steps {
			if err := c.insist(ctx, y, s.command, s.becomes); err != nil {
				return err
			}
			c.state[id] = s.becomes
		}
	}
	return nil
}

// insist repeats a command until it is done, also where it was done before
// and the answer did not come.
func (c *caller) insist(ctx context.Context, y *Yard, command, becomes string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return until(ctx, command, func() error {
		err := errors.New("no node runs")
		for _, n := range y.Nodes { // one that is down refuses the connection
			var event json.RawMessage
			err = n.Ask(ctx, cluster.SubjectExec, json.RawMessage(command), &event)
			if err == nil || strings.Contains(err.Error(), ": "+becomes+" -> ") {
				return nil
			}
		}
		return err
	})
}

// unsteady are loads whose jobs do all that jobs may do: run, fail, run again,
// wait, and be cancelled.
func unsteady(scale int) []*Load {
	return []*Load{
		{Queue: "free", Jobs: 20 * scale, Parallel: 4},
		{Queue: "limited", Jobs: 4 * scale, Parallel: 2},
		{Queue: "rrq", Function: "demo#retry", Params: `{"times":2}`, Jobs: 4 * scale, Parallel: 2},
		{Queue: "failing", Function: "demo#fail", Jobs: scale, Parallel: 2},
		{Queue: "nobody", Jobs: scale, Parallel: 2},
	}
}

// cancelOnTheWay cancels the jobs that nobody serves, and some of those that
// somebody does, while they come in.
func cancelOnTheWay(ctx context.Context, y *Yard, loads ...*Load) {
	for _, l := range loads {
		for i := 0; i < l.Jobs && ctx.Err() == nil; i++ {
			id, err := job.KeyID(l.Queue, l.Key(i))
			for err == nil && ctx.Err() == nil {
				one, cancel := context.WithTimeout(ctx, 3*time.Second)
				answered := errors.New("no node runs")
				for _, n := range y.Nodes {
					if answered = n.api(one, "job.cancel", map[string]any{"id": id, "reason": "drill"}, nil); answered == nil {
						break
					}
				}
				cancel()
				var refused *cluster.APIError
				if answered == nil || errors.As(answered, &refused) && refused.Code == "409" {
					break // it is cancelled, or has ended
				}
				pause(ctx, 20*time.Millisecond)
			}
		}
	}
}

// TestDrill_History: while jobs run, fail, come again and are cancelled, and a
// caller marks dispatches of its own, nodes are killed ten times, the authority
// and others in turn. Then the stream of events is read from its beginning.
func TestDrill_History(t *testing.T) {
	soak(t)
	y, ctx := stage(t, 6*time.Minute)
	for _, queue := range []string{"failing", "nobody"} {
		if err := y.AddQueue(ctx, queue, 0); err != nil {
			t.Fatal(err)
		}
	}
	work(t, y, "free", 3, 8, time.Millisecond)
	work(t, y, "limited", 3, 4, 5*time.Millisecond)
	loads := unsteady(300)
	for _, l := range loads {
		l.Pace = 90 * time.Second * time.Duration(l.Parallel) / time.Duration(l.Jobs)
	}
	own := &caller{name: "own"}
	working, stop := context.WithCancel(ctx)
	var asides sync.WaitGroup
	asides.Go(func() {
		if err := own.run(working, y); err != nil {
			t.Error(err)
		}
	})
	loads[0].At, loads[0].Then = 200, func() { killInTurn(t, ctx, y, 10) }
	asides.Go(func() { cancelOnTheWay(ctx, y, loads[4]) })
	publish(t, ctx, y, loads...)
	stop()
	asides.Wait()
	v := judge(t, ctx, y, loads...)
	book := account(t, ctx, y, loads...)
	for id, want := range own.state {
		if got := book.State(id); got != want {
			t.Errorf("the caller was told that %s is %s, history tells %q", id, want, got)
		}
	}
	if v.Failed < loads[3].Jobs+loads[4].Jobs || len(own.state) < 100 {
		t.Errorf("%d jobs failed, %d dispatches were the caller's own: too few to prove anything", v.Failed, len(own.state))
	}
	t.Logf("%d dispatches of the caller's own", len(own.state))
}

// killInTurn kills the authority, another node, the authority, and so on, and
// starts each again.
func killInTurn(t *testing.T, ctx context.Context, y *Yard, times int) {
	t.Helper()
	for i := range times {
		if i%2 == 0 {
			restart(t, ctx, y, killAuthority(t, ctx, y))
			continue
		}
		authority, err := y.Authority(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		for _, n := range y.Nodes {
			if n != authority && n.Running() {
				y.Kill(n)
				t.Logf("killed %s, which only followed", n.Name)
				restart(t, ctx, y, n)
				break
			}
		}
	}
}
