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

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/contractcheck"
)

// The drills in this file check the history of a cluster against its state.

// checkContract reads the whole history and requires that it agrees with every node's
// authority and backlog, with each job, and that the ledgers are equal.
func checkContract(t *testing.T, ctx context.Context, cl *Cluster, loads ...*Load) *contractcheck.Checker {
	t.Helper()
	began := time.Now()
	book, err := cl.CheckContract(ctx)
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := cl.RequireSameOutcomes(ctx, book, loads...)
	if err != nil {
		t.Error(err)
	}
	index, err := cl.RequireSameLedger(ctx)
	if err != nil {
		t.Error(err)
	}
	t.Logf("%d events agree with %d jobs and %d snapshots, ledgers are equal at index %d (%s)",
		book.Number(), jobs, len(cl.Running()), index, time.Since(began).Round(time.Millisecond))
	return book
}

// contractClient executes its own dispatches through yard.exec, as a program with
// its own backlog does, and records the last acknowledged state of each.
type contractClient struct {
	name  string
	state map[string]string // by request id
}

// run executes dispatches through all their states, one after the other, until ctx
// ends.
func (c *contractClient) run(ctx context.Context, cl *Cluster) error {
	c.state = make(map[string]string)
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprintf("%s-%d", c.name, i)
		steps := []struct{ command, becomes string }{
			{fmt.Sprintf(`{"command":"QueueDispatch","request_id":%q,"target":"hall","metadata":{"i":%d}}`, id, i), contractcheck.Pending},
			{fmt.Sprintf(`{"command":"MarkNotified","request_id":%q,"channel":"bell"}`, id), contractcheck.Notified},
			{fmt.Sprintf(`{"command":"MarkDelivered","request_id":%q}`, id), contractcheck.Delivered},
		}
		switch i % 4 {
		case 1: // fails before its worker is notified
			steps = append(steps[:1], struct{ command, becomes string }{fmt.Sprintf(`{"command":"MarkFailed","request_id":%q,"reason":"no bell"}`, id), contractcheck.Failed})
		case 2:
			steps[2] = struct{ command, becomes string }{fmt.Sprintf(`{"command":"MarkFailed","request_id":%q,"reason":"no answer"}`, id), contractcheck.Failed}
		case 3: // stays notified
			steps = steps[:2]
		}
		for _, s := range steps {
			if err := c.insist(ctx, cl, s.command, s.becomes); err != nil {
				return err
			}
			c.state[id] = s.becomes
		}
	}
	return nil
}

// insist repeats a command until it is executed, also if an earlier try was executed
// and its answer lost.
func (c *contractClient) insist(ctx context.Context, cl *Cluster, command, becomes string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return until(ctx, command, func() error {
		err := errors.New("no node is running")
		for _, n := range cl.Nodes { // a stopped node refuses the connection
			var event json.RawMessage
			err = n.Ask(ctx, api.SubjectExec, json.RawMessage(command), &event)
			if err == nil || strings.Contains(err.Error(), ": "+becomes+" -> ") {
				return nil
			}
		}
		return err
	})
}

// failRandomly returns loads whose jobs complete, fail, are retried, wait and are
// cancelled.
func failRandomly(scale int) []*Load {
	return []*Load{
		{Queue: "free", Jobs: 20 * scale, Parallel: 4},
		{Queue: "limited", Jobs: 4 * scale, Parallel: 2},
		{Queue: "rrq", Function: "demo#retry", JobParams: `{"times":2}`, Jobs: 4 * scale, Parallel: 2},
		{Queue: "failing", Function: "demo#fail", Jobs: scale, Parallel: 2},
		{Queue: "nobody", Jobs: scale, Parallel: 2},
	}
}

// cancelOnTheWay cancels the jobs of queues without workers, and some of the others,
// while they are enqueued.
func cancelOnTheWay(ctx context.Context, cl *Cluster, loads ...*Load) {
	for _, l := range loads {
		for i := 0; i < l.Jobs && ctx.Err() == nil; i++ {
			id, err := job.KeyID(l.Queue, l.Key(i))
			for err == nil && ctx.Err() == nil {
				one, cancel := context.WithTimeout(ctx, 3*time.Second)
				answered := errors.New("no node is running")
				for _, n := range cl.Nodes {
					if answered = n.api(one, "job.cancel", map[string]any{"id": id, "reason": "drill"}, nil); answered == nil {
						break
					}
				}
				cancel()
				var refused *api.Error
				if answered == nil || errors.As(answered, &refused) && refused.Code == "409" {
					break // cancelled, or ended before
				}
				backoff.Sleep(ctx, 20*time.Millisecond)
			}
		}
	}
}

// TestDrill_History kills nodes ten times, the authority and followers in turn, while
// jobs run, fail, are retried and cancelled, and a client executes its own
// dispatches. Then it checks the stream of events from the beginning.
func TestDrill_History(t *testing.T) {
	soakTime(t)
	cl, ctx := newHarness(t, 6*time.Minute)
	for _, queue := range []string{"failing", "nobody"} {
		if err := cl.AddQueue(ctx, queue, 0); err != nil {
			t.Fatal(err)
		}
	}
	work(t, cl, "free", 3, 8, time.Millisecond)
	work(t, cl, "limited", 3, 4, 5*time.Millisecond)
	loads := failRandomly(300)
	for _, l := range loads {
		l.Pace = 90 * time.Second * time.Duration(l.Parallel) / time.Duration(l.Jobs)
	}
	own := &contractClient{name: "own"}
	working, stop := context.WithCancel(ctx)
	var asides sync.WaitGroup
	asides.Go(func() {
		if err := own.run(working, cl); err != nil {
			t.Error(err)
		}
	})
	loads[0].At, loads[0].Then = 200, func() { killEachInTurn(t, ctx, cl, 10) }
	asides.Go(func() { cancelOnTheWay(ctx, cl, loads[4]) })
	publish(t, ctx, cl, loads...)
	stop()
	asides.Wait()
	v := judge(t, ctx, cl, loads...)
	book := checkContract(t, ctx, cl, loads...)
	for id, want := range own.state {
		if got := book.State(id); got != want {
			t.Errorf("the client's dispatch %s was acknowledged as %s, history has %q", id, want, got)
		}
	}
	if v.Failed < loads[3].Jobs+loads[4].Jobs || len(own.state) < 100 {
		t.Errorf("%d jobs failed, %d dispatches of the client: too few for a meaningful test", v.Failed, len(own.state))
	}
	t.Logf("%d dispatches of the client", len(own.state))
}

// killEachInTurn alternately kills the authority and a follower, and restarts each.
func killEachInTurn(t *testing.T, ctx context.Context, cl *Cluster, times int) {
	t.Helper()
	for i := range times {
		if i%2 == 0 {
			restart(t, ctx, cl, killAuthority(t, ctx, cl))
			continue
		}
		authority, err := cl.Authority(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		for _, n := range cl.Nodes {
			if n != authority && n.Running() {
				cl.Kill(n)
				t.Logf("killed %s, a follower", n.Name)
				restart(t, ctx, cl, n)
				break
			}
		}
	}
}
