package clustertest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// callCounter counts the runs of each job.
type callCounter struct {
	mu    sync.Mutex
	calls map[string]int
}

func (c *callCounter) handle(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.calls == nil {
		c.calls = make(map[string]int)
	}
	c.calls[q.JID]++
	return nil, nil
}

func (c *callCounter) jobs() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

// TestIsolate isolates the authority: another member must take over, jobs accepted
// meanwhile must run, the isolated member must soon refuse requests, and after healing
// all must agree.
func TestIsolate(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	t.Parallel()
	cl := clustertest.Start(t, 3, testConfig)
	cl.Members[0].AddQueue(t, "work", 0)
	var done callCounter
	for _, m := range cl.Members {
		w := &overhop.Worker{} // one per member, so that not all are at the isolated one
		w.Handle("work", 4, done.handle)
		m.RunWorker(t, w)
	}
	for i := range 30 {
		cl.Members[i%3].Enqueue(t, "work", `{"params":{}}`)
	}
	cl.Eventually("the first jobs have run", func() error { return cl.Members[0].CheckCount("work", "completed", 30) })

	old := cl.WaitAuthority()
	held, quest := holdJob(t, old)
	began := time.Now()
	old.Isolate()
	follower := cl.Members[0]
	if follower == old {
		follower = cl.Members[1]
	}
	release := resumeAt(t, cl, follower, &quest)
	now := cl.WaitAuthority(old)
	t.Logf("another authority after %s", time.Since(began))
	release() // at once: on a busy machine further elections may outlast the lease
	if j := now.WaitOutcome(t, held); j.State != "completed" || j.Dispatches != 1 || j.Node != follower.Name {
		t.Errorf("the resumed job: %+v", j)
	}
	for i := range 30 {
		key := fmt.Sprintf("meanwhile-%d", i)
		cl.Eventually(key+" is accepted", func() error {
			return now.Request("yard.enqueue.work", `{"id":"`+key+`","params":{}}`, nil)
		})
	}
	cl.Eventually("jobs run without the isolated node", func() error { return now.CheckCount("work", "completed", 60) })

	isolatedReports(t, cl, old)
	cl.Heal()
	cl.WaitReady()
	for i, m := range cl.Members {
		m.Enqueue(t, "work", fmt.Sprintf(`{"id":"after-%d","params":{}}`, i))
	}
	cl.Eventually("all have run", func() error { return old.CheckCount("work", "completed", 63) })
	if done.jobs() != 63 {
		t.Errorf("%d jobs ran, want 63", done.jobs())
	}
}

// isolatedReports checks that an isolated member refuses commands, and reports that it
// is not ready, why, and that it accepts no jobs.
func isolatedReports(t *testing.T, cl *clustertest.Cluster, old *clustertest.Member) {
	t.Helper()
	err := old.API("queue.pause", map[string]any{"name": "work"}, nil)
	var refused *api.Error
	if !errors.As(err, &refused) || refused.Code != "503" {
		t.Errorf("the isolated node answered a command with %v", err)
	}
	cl.Eventually("the isolated node reports that it is not ready, with the reason", func() error {
		s, err := old.Status()
		if err != nil {
			return err
		}
		if s.Readiness.Ready || !strings.Contains(strings.Join(s.Readiness.Reasons, ", "), "no quorum: ") || s.Authority.Owner == old.Name && !s.Authority.Expired {
			return fmt.Errorf("ready %t, reasons %q, authority %+v", s.Readiness.Ready, s.Readiness.Reasons, s.Authority)
		}
		return nil
	})
	waitNotReady(cl, old, "JetStream is not healthy: ")
	waitNotReady(cl, old, "no lane has a leader")
	if s, err := old.Status(); err != nil || s.Readiness.Accepting {
		t.Errorf("the isolated node reports that it accepts jobs; lanes %+v, %v", s.Lanes, err)
	}
}

// waitNotReady waits until a member reports a readiness reason with this text.
func waitNotReady(cl *clustertest.Cluster, m *clustertest.Member, reason string) {
	cl.Eventually(m.Name+" is not ready because "+reason, func() error {
		s, err := m.Status()
		if err == nil && !strings.Contains(strings.Join(s.Readiness.Reasons, "\n"), reason) {
			err = fmt.Errorf("the reasons are %q", s.Readiness.Reasons)
		}
		return err
	})
}

// holdJob runs a worker at the member that takes a job and holds it.
func holdJob(t *testing.T, m *clustertest.Member) (id string, q overhop.Quest) {
	t.Helper()
	m.AddQueue(t, "held", 0)
	quests := make(chan overhop.Quest, 1)
	w := m.Overhop(t, overhop.Options{OnQuest: func(q overhop.Quest) { quests <- q }})
	if _, err := w.Subscribe(shortContext(t), "held", 1); err != nil {
		t.Fatal(err)
	}
	id = m.Enqueue(t, "held", `{"params":{}}`).String()
	q = <-quests
	if err := beatAfterAck(w, &q); err != nil {
		t.Fatal(err)
	}
	return id, q
}

// resumeAt connects a worker with the lease of a running job to the member and renews the
// lease there; release completes the job. The job must not be dispatched again.
func resumeAt(t *testing.T, cl *clustertest.Cluster, m *clustertest.Member, q *overhop.Quest) (release func()) {
	t.Helper()
	w := m.Overhop(t, overhop.Options{OnQuest: func(again overhop.Quest) {
		t.Errorf("%s was dispatched again to the worker that runs it: attempt %d", again.JID, again.Attempt)
	}})
	if _, err := w.Subscribe(shortContext(t), "held", 4); err != nil {
		t.Fatal(err)
	}
	cl.Eventually("the job is resumed by its worker", func() error { return beat(w, q) })
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		var last error // a beat may fail while the authority changes
		for {
			select {
			case <-stop:
				stopped <- last
				return
			case <-tick.C:
				last = beat(w, q)
			}
		}
	}()
	return func() {
		t.Helper()
		close(stop)
		if err := <-stopped; err != nil {
			t.Errorf("the worker's last beat: %v", err)
		}
		then, wait := answers(t)
		w.Done(q, nil, 0, then)
		if got := wait().String(); got != "ok" {
			t.Errorf("the worker's DONE: %s", got)
		}
	}
}

// TestRestart restarts each member in turn while jobs are enqueued through the others:
// none may be lost or refused. A job that runs at the first member must continue at
// another.
func TestRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three nodes")
	}
	t.Parallel()
	cl := clustertest.Start(t, 3, testConfig)
	cl.Members[0].AddQueue(t, "rolling", 0)
	var done callCounter
	total := 0
	moved := startHandover(t, cl, cl.Members[0])
	for turn, m := range cl.Members {
		others := []*clustertest.Member{cl.Members[(turn+1)%3], cl.Members[(turn+2)%3]}
		worker, stop := context.WithCancel(context.Background())
		var work sync.WaitGroup
		w := overhop.Worker{ShutdownGrace: time.Second,
			Nodes: []string{others[0].Node().Addresses().Overhop, others[1].Node().Addresses().Overhop}}
		w.Handle("rolling", 8, done.handle)
		work.Go(func() {
			if err := w.Run(worker); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(func() { stop(); work.Wait() }) // also if the test fails before
		stopped := make(chan struct{})
		work.Go(func() { m.Stop(); close(stopped) })
		for going, least := true, total+100; going || total < least; {
			select {
			case <-stopped:
				if going && turn == 0 {
					moved.finish(t) // at once: on a busy machine elections may outlast the lease
				}
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
		cl.Eventually("all have run", func() error { return others[0].CheckCount("rolling", "completed", total) })
		stop()
		work.Wait()
		m.Restart()
		cl.WaitReady()
	}
	if done.jobs() != total {
		t.Errorf("%d jobs ran, want %d", done.jobs(), total)
	}
	t.Logf("%d jobs over three restarts", total)
}

// TestAlone restarts a standalone node.
func TestAlone(t *testing.T) {
	t.Parallel()
	cl := clustertest.Start(t, 1, testConfig)
	m := cl.Members[0]
	m.AddQueue(t, "alone", 0)
	for i := range 20 {
		m.Enqueue(t, "alone", fmt.Sprintf(`{"id":"job-%d","params":{}}`, i))
	}
	if _, err := publishJob(t, m, "alone", "plain", `{"params":{}}`); err != nil {
		t.Fatal(err)
	}
	if j := m.WaitOutcome(t, m.Enqueue(t, "rrq", `{"function":"demo#echo","params":{"n":1}}`).String()); string(j.Result) != `{"n":1}` {
		t.Errorf("%+v", j)
	}
	m.Restart()
	cl.WaitReady()
	cl.Eventually("jobs are still there", func() error { return m.CheckCount("alone", "waiting", 21) })
	var again struct{ Duplicate bool }
	if err := m.Request("yard.enqueue.alone", `{"id":"job-7","params":{}}`, &again); err != nil || !again.Duplicate {
		t.Errorf("the same key after a restart: %+v, %v", again, err)
	}
	var done callCounter
	m.Worker(t, "alone", 4, done.handle)
	cl.Eventually("all have run", func() error { return m.CheckCount("alone", "completed", 21) })
	history(t, cl)
}
