package nodetest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"yardmaster/cluster"
	"yardmaster/edge/overhop"
	"yardmaster/internal/nodetest"
	"yardmaster/job"
)

// tally counts a handler's calls by job.
type tally struct {
	mu  sync.Mutex
	ran map[string]int
}

func (c *tally) handle(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ran == nil {
		c.ran = make(map[string]int)
	}
	c.ran[q.JID]++
	return nil, nil
}

func (c *tally) jobs() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.ran)
}

// TestIsolate takes the authority off the network without a word: another
// member takes over, what is accepted meanwhile runs, the isolated one refuses
// soon, and afterwards all agree.
func TestIsolate(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	y := nodetest.Start(t, 3, settings)
	y.Members[0].AddQueue(t, "work", 0)
	var done tally
	for _, m := range y.Members {
		w := &overhop.Worker{} // each at its own node: not all of them at the one that goes
		w.Handle("work", 4, done.handle)
		m.RunWorker(t, w)
	}
	for i := range 30 {
		y.Members[i%3].Enqueue(t, "work", `{"params":{}}`)
	}
	y.Eventually("the first jobs have run", func() error { return y.Members[0].Holds("work", "completed", 30) })

	old := y.WaitAuthority()
	held, quest := heldAt(t, old)
	began := time.Now()
	old.Isolate()
	follower := y.Members[0]
	if follower == old {
		follower = y.Members[1]
	}
	// As long as it hears a leader at all, which it does for about a second.
	if s, err := follower.Status(); err != nil || s.Readiness.Ready {
		t.Errorf("a follower asks the authority that has gone, and says %q, %v", s.Readiness.Reasons, err)
	} else {
		t.Logf("a follower says %q", s.Readiness.Reasons)
	}
	now := y.WaitAuthority(old)
	looked := time.Now()
	if j := now.Job(t, held); j.State != "active" || j.Node != old.Name || time.Since(looked) > 2*time.Second {
		t.Errorf("a job that the isolated node runs, after %s: %+v", time.Since(looked), j)
	}
	t.Logf("another authority after %s", time.Since(began))
	release := carryTo(t, y, now, &quest)
	for i := range 30 {
		key := fmt.Sprintf("meanwhile-%d", i)
		y.Eventually(key+" is accepted", func() error {
			return now.Ask("yard.enqueue.work", `{"id":"`+key+`","params":{}}`, nil)
		})
	}
	y.Eventually("jobs run without it", func() error { return now.Holds("work", "completed", 60) })

	knowsItself(t, y, old)
	y.Heal()
	y.WaitReady()
	for i, m := range y.Members {
		m.Enqueue(t, "work", fmt.Sprintf(`{"id":"after-%d","params":{}}`, i))
	}
	y.Eventually("all have run", func() error { return old.Holds("work", "completed", 63) })
	if done.jobs() != 63 {
		t.Errorf("%d jobs ran, want 63", done.jobs())
	}
	release()
	if j := old.WaitOutcome(t, held); j.State != "completed" || j.Dispatches != 1 || j.Node != now.Name {
		t.Errorf("the job that was carried over: %+v", j)
	}
}

// knowsItself: a member that is cut off refuses commands in time, and says that
// it is not ready, why, and that it takes no jobs.
func knowsItself(t *testing.T, y *nodetest.Yard, old *nodetest.Member) {
	t.Helper()
	asked := time.Now()
	err := old.API("queue.pause", map[string]any{"name": "work"}, nil)
	var refused *cluster.APIError
	if !errors.As(err, &refused) || refused.Code != "503" || time.Since(asked) > 4*time.Second {
		t.Errorf("the isolated node answers a command with %v after %s", err, time.Since(asked))
	}
	y.Eventually("the isolated node says that it is not ready, and why", func() error {
		s, err := old.Status()
		if err != nil {
			return err
		}
		if s.Readiness.Ready || !strings.Contains(strings.Join(s.Readiness.Reasons, ", "), "no quorum: ") || s.Authority.Owner == old.Name && !s.Authority.Expired {
			return fmt.Errorf("it is ready: %t, because %q; authority %+v", s.Readiness.Ready, s.Readiness.Reasons, s.Authority)
		}
		return nil
	})
	notReady(y, old, "JetStream is not healthy: ")
	notReady(y, old, "no lane has a leader")
	if s, err := old.Status(); err != nil || s.Readiness.Accepting {
		t.Errorf("the isolated node claims to accept jobs; lanes %+v, %v", s.Lanes, err)
	}
}

// notReady waits until a member names such a reason for not being ready.
func notReady(y *nodetest.Yard, m *nodetest.Member, why string) {
	y.Eventually(m.Name+" is not ready because "+why, func() error {
		s, err := m.Status()
		if err == nil && !strings.Contains(strings.Join(s.Readiness.Reasons, "\n"), why) {
			err = fmt.Errorf("it says %q", s.Readiness.Reasons)
		}
		return err
	})
}

// heldAt has a worker of the member hold a job.
func heldAt(t *testing.T, m *nodetest.Member) (id string, q overhop.Quest) {
	t.Helper()
	m.AddQueue(t, "held", 0)
	quests := make(chan overhop.Quest, 1)
	w := m.Overhop(t, overhop.Options{Quests: func(q overhop.Quest) { quests <- q }})
	if _, err := w.Subscribe(soon(t), "held", 1); err != nil {
		t.Fatal(err)
	}
	id = m.Enqueue(t, "held", `{"params":{}}`).String()
	q = <-quests
	if err := beatAfterAck(w, &q); err != nil {
		t.Fatal(err)
	}
	return id, q
}

// carryTo has a worker come to the member with the job in its hands and keep it
// alive there; release ends it. It must not be given the job again.
func carryTo(t *testing.T, y *nodetest.Yard, m *nodetest.Member, q *overhop.Quest) (release func()) {
	t.Helper()
	w := m.Overhop(t, overhop.Options{Quests: func(again overhop.Quest) {
		t.Errorf("%s was given out to the worker that had it: attempt %d", again.JID, again.Attempt)
	}})
	if _, err := w.Subscribe(soon(t), "held", 4); err != nil {
		t.Fatal(err)
	}
	y.Eventually("the worker's job is carried over", func() error { return beat(w, q) })
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			case <-tick.C:
			}
			if err := beat(w, q); err != nil {
				stopped <- err
				return
			}
		}
	}()
	return func() {
		t.Helper()
		close(stop)
		if err := <-stopped; err != nil {
			t.Errorf("the worker's beat: %v", err)
		}
		then, wait := answers(t)
		w.Done(q, nil, 0, then)
		if got := wait().String(); got != "ok" {
			t.Errorf("the worker's DONE: %s", got)
		}
	}
}

// TestRestart stops each member in turn while jobs come in through the others:
// none is lost, none refused. The first has a job in hand, which goes on
// elsewhere as if nothing had happened.
func TestRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	y := nodetest.Start(t, 3, settings)
	y.Members[0].AddQueue(t, "rolling", 0)
	var done tally
	total := 0
	moved := moveFrom(t, y, y.Members[0])
	for turn, m := range y.Members {
		others := []*nodetest.Member{y.Members[(turn+1)%3], y.Members[(turn+2)%3]}
		worker, stop := context.WithCancel(context.Background())
		var work sync.WaitGroup
		w := overhop.Worker{Grace: time.Second,
			Nodes: []string{others[0].Node().Addresses().Overhop, others[1].Node().Addresses().Overhop}}
		w.Handle("rolling", 8, done.handle)
		work.Go(func() {
			if err := w.Run(worker); err != nil {
				t.Error(err)
			}
		})
		stopped := make(chan struct{})
		work.Go(func() { m.Stop(); close(stopped) })
		for going, least := true, total+100; going || total < least; {
			select {
			case <-stopped:
				going = false
			default:
			}
			id, err := job.KeyID("rolling", fmt.Sprintf("job-%d", total))
			if err != nil {
				t.Fatal(err)
			}
			if got := others[total%2].Enqueue(t, "rolling", fmt.Sprintf(`{"id":"job-%d","params":{}}`, total)); got != id {
				t.Fatalf("job %d is %s, want %s", total, got, id)
			}
			total++
		}
		y.Eventually("all have run", func() error { return others[0].Holds("rolling", "completed", total) })
		stop()
		work.Wait()
		if turn == 0 {
			moved.finish(t)
		}
		m.Restart()
		y.WaitReady()
	}
	if done.jobs() != total {
		t.Errorf("%d jobs ran, want %d", done.jobs(), total)
	}
	t.Logf("%d jobs over three restarts", total)
}

// TestAlone is a yard of one node, restarted in the middle.
func TestAlone(t *testing.T) {
	y := nodetest.Start(t, 1, settings)
	m := y.Members[0]
	m.AddQueue(t, "alone", 0)
	for i := range 20 {
		m.Enqueue(t, "alone", fmt.Sprintf(`{"id":"job-%d","params":{}}`, i))
	}
	if _, err := m.Client().PublishJob(soon(t), "alone", "plain", []byte(`{"params":{}}`)); err != nil {
		t.Fatal(err)
	}
	if j := m.WaitOutcome(t, m.Enqueue(t, "rrq", `{"function":"demo#echo","params":{"n":1}}`).String()); string(j.Result) != `{"n":1}` {
		t.Errorf("%+v", j)
	}
	m.Restart()
	y.WaitReady()
	y.Eventually("jobs are still there", func() error { return m.Holds("alone", "waiting", 21) })
	var again struct{ Duplicate bool }
	if err := m.Ask("yard.enqueue.alone", `{"id":"job-7","params":{}}`, &again); err != nil || !again.Duplicate {
		t.Errorf("the same key after a restart: %+v, %v", again, err)
	}
	var done tally
	m.Worker(t, "alone", 4, done.handle)
	y.Eventually("all have run", func() error { return m.Holds("alone", "completed", 21) })
	history(t, y)
}
