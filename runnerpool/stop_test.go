package runnerpool

import (
	"strconv"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// awaitSent waits until the request of a dispatch is written. A recall before
// that has another outcome.
func (h *harness) awaitSent(a job.Assignment) {
	h.t.Helper()
	h.awaitDispatch(a, func(d *dispatch) bool { return d.sent })
}

// awaitStopping waits until a slot waits for the answer to the cancel that it
// sent after a recall for that reason.
func (h *harness) awaitStopping(a job.Assignment, why job.RecallReason) {
	h.t.Helper()
	h.awaitDispatch(a, func(d *dispatch) bool { return d.conn != nil && d.recallReason == why && !d.recallPending })
}

// awaitDispatch waits until ok reports true of a running dispatch.
func (h *harness) awaitDispatch(a job.Assignment, ok func(*dispatch) bool) {
	h.t.Helper()
	late, tick := time.After(testTimeout), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		h.Pools.mu.Lock()
		d := h.running[a.DispatchID()]
		h.Pools.mu.Unlock()
		if d != nil { // its slot has begun with it
			d.mu.Lock()
			done := ok(d)
			d.mu.Unlock()
			if done {
				return
			}
		}
		select {
		case <-tick.C:
		case <-late:
			h.t.Fatal("the dispatch does not get there")
		}
	}
}

// A runner that stops on a cancel is not replaced, whatever the reason.
func TestStop_Cancels(t *testing.T) {
	y := startHarness(t, testConfig("", func(c *RunnerConfig) { c.CancelGrace = ptr(5) }))
	before := y.pid()
	for _, test := range []struct {
		why    job.RecallReason
		status job.Status
		text   string
	}{
		{job.RecallCancelled, job.RunCancelled, "Job cancelled"},
		{job.RecallQueueGone, job.RunCancelled, "Job cancelled"},
		{job.RecallDeadline, job.TimedOut, "Job timed out after 10s."},
		{job.RecallShutdown, job.Interrupted, "Job execution interrupted by node shutdown"},
		{job.RecallSuperseded, job.Lost, "superseded by another dispatch"},
		{job.RecallLease, job.Lost, "the node's lease ended"},
	} {
		a := y.start("wait", nil)
		y.awaitSent(a)
		y.Stop(job.Recall{Job: a.Job, N: a.N, Reason: test.why})
		y.Stop(job.Recall{Job: a.Job, N: a.N, Reason: test.why})
		y.expect(y.awaitOutcome(), test.status, true, test.text)
	}
	y.Stop(job.Recall{Job: job.ID{1}, N: 1, Reason: job.RecallCancelled}) // unknown: ignored
	if y.pid() != before {
		t.Error("a runner that stops on cancels was replaced")
	}
}

// Without cancel hints, a process that runs a single request is killed; one
// that runs several is sent a cancel, so that the others can continue.
func TestStop_WithoutCancelHints(t *testing.T) {
	cfg := testConfig("", func(c *RunnerConfig) { c.CancelGrace, c.MaxInFlight = ptr(5), 2 })
	off := false
	cfg.CancelHints = &off
	y := startHarness(t, cfg)
	w := y.awaitOffer(2)
	first, second := assignment(1, "wait", w), assignment(2, "wait", w)
	for _, a := range []job.Assignment{first, second} {
		if !y.Start(a, specOf(`{}`)) {
			t.Fatal("not started")
		}
		y.awaitSent(a)
	}
	before := y.Status()[0].Members[0].PID
	y.Stop(job.Recall{Job: first.Job, N: first.N, Reason: job.RecallCancelled})
	y.expect(y.awaitOutcome(), job.RunCancelled, true, "Job cancelled")
	if s := y.Status()[0].Members[0]; s.PID != before || s.InFlight != 1 {
		t.Errorf("the other request was not spared: %+v", s)
	}
	y.Stop(job.Recall{Job: second.Job, N: second.N, Reason: job.RecallCancelled})
	y.expect(y.awaitOutcome(), job.RunCancelled, true, "Job cancelled")
	y.n = 2
	if y.pid() == strconv.Itoa(before) {
		t.Error("the process of a stopped request still runs")
	}
}

// A success that arrives while a dispatch is being stopped counts.
func TestStop_AfterAnswer(t *testing.T) {
	y := startHarness(t, testConfig("", func(c *RunnerConfig) { c.CancelGrace = ptr(testTimeout.Seconds()) }))
	a := y.start("late", nil)
	y.awaitSent(a)
	y.Stop(job.Recall{Job: a.Job, N: a.N, Reason: job.RecallCancelled})
	y.expect(y.awaitOutcome(), job.Success, true, "")
}

// A success that arrives after the deadline, but within the slack, counts. On a
// slow machine an answer can miss the slack; another job is tried then.
func TestStop_AnswerWithinSlack(t *testing.T) {
	y := startHarness(t, testConfig("", nil))
	for begin := time.Now(); ; {
		o := y.run("late", withTimeout(200*time.Millisecond))
		if o.Status == job.Success {
			return
		}
		if y.expect(o, job.TimedOut, true, "Job timed out after 0.2s."); time.Since(begin) > testTimeout {
			t.Fatal("no answer counted")
		}
	}
}

func TestStop_Kills(t *testing.T) {
	for _, mode := range []string{"good", "ignores-term"} {
		t.Run(mode, func(t *testing.T) {
			y := startHarness(t, testConfig(mode, nil))
			before := y.pid()
			y.expect(y.run("hang", withTimeout(200*time.Millisecond)), job.TimedOut, true, "Job timed out after 0.2s.")
			between := y.pid()
			a := y.start("hang", nil)
			y.awaitSent(a)
			y.Stop(job.Recall{Job: a.Job, N: a.N, Reason: job.RecallCancelled})
			y.expect(y.awaitOutcome(), job.RunCancelled, true, "Job cancelled")
			if after := y.pid(); before == between || between == after {
				t.Errorf("pids are %s, %s, %s; want three", before, between, after)
			}
		})
	}
}

// The end of the node's lease ends all graces.
func TestStop_LeaseEndKillsAtOnce(t *testing.T) {
	cfg := testConfig("ignores-term", func(c *RunnerConfig) { c.CancelGrace = ptr(3600) })
	cfg.TermGrace = ptr(3600)
	y := startHarness(t, cfg)
	for first, status := range map[job.RecallReason]job.Status{
		job.RecallLease:     job.Lost,
		job.RecallShutdown:  job.Lost,
		job.RecallCancelled: job.RunCancelled, // final, and the handler has stopped
	} {
		a := y.start("hang", nil)
		y.awaitSent(a)
		y.Stop(job.Recall{Job: a.Job, N: a.N, Reason: first})
		if first != job.RecallLease {
			y.awaitStopping(a, first)
		}
		y.Stop(job.Recall{Job: a.Job, N: a.N, Reason: job.RecallLease})
		if o := y.awaitOutcome(); o.Status != status { // long before the grace of an hour
			t.Errorf("%s: outcome is %s", first, o.Status)
		}
	}
	// A runner that ignores SIGTERM would delay the test for an hour.
	a := y.start("pid", nil)
	y.awaitOutcome()
	y.Pools.mu.Lock()
	w := y.workers[a.Worker]
	y.Pools.mu.Unlock()
	w.proc.kill()
	<-w.proc.exited
}

// The process of a stuck request is killed, but its other requests may finish.
func TestStop_OtherRequestsOfStuckProcess(t *testing.T) {
	cfg := testConfig("", func(c *RunnerConfig) { c.MaxInFlight = 3 })
	cfg.TermGrace = ptr(1.5)
	y := startHarness(t, cfg)
	w := y.awaitOffer(3)
	stuck, finishes, lost := assignment(1, "hang", w), assignment(2, "late", w), assignment(3, "hang", w)
	stuck.Timeout, finishes.Timeout = 200*time.Millisecond, 1200*time.Millisecond
	for _, a := range []job.Assignment{stuck, finishes, lost} {
		if !y.Start(a, specOf(`{}`)) {
			t.Fatal("not started")
		}
	}
	if y.Start(assignment(4, "echo", w), specOf(`{}`)) {
		t.Error("a fourth dispatch got one of three slots")
	}
	if !y.Start(lost, specOf(`{}`)) {
		t.Error("a dispatch that is already running was refused")
	}
	got := map[job.ID]job.Status{}
	for range 3 {
		o := y.awaitOutcome()
		got[o.Job] = o.Status
	}
	if got[stuck.Job] != job.TimedOut || got[finishes.Job] != job.Success || got[lost.Job] != job.Lost {
		t.Errorf("outcomes are %v", got)
	}
	if y.awaitOffer(3) == w && len(y.outcomes) > 0 {
		t.Error("more outcomes than dispatches")
	}
}

func TestDrain(t *testing.T) {
	y := startHarness(t, testConfig("", nil))
	a := y.start("hang", nil)
	y.awaitSent(a)
	y.stop()
	y.expect(y.awaitOutcome(), job.Interrupted, true, "Job execution interrupted by node shutdown")
	if y.Start(assignment(99, "echo", a.Worker), specOf(`{}`)) {
		t.Error("a draining pool accepted a dispatch")
	}
	if err := <-y.done; err != nil {
		t.Error(err)
	}
	y.done <- nil
	for w, free := range y.offers {
		if free != 0 {
			t.Errorf("%s is still offered", w)
		}
	}
}

// TestCancelTimeout_LeaseEnd checks that a runner that accepts no cancels cannot delay the
// end of its process until the dispatch starts elsewhere, 1.5 s after the end of the lease.
func TestCancelTimeout_LeaseEnd(t *testing.T) {
	d := &dispatch{}
	inProgress := d.cancelTimeout() // when the lease ends
	d.recall(job.RecallLease)
	if longest := inProgress + 2*d.cancelTimeout() + leaseEndWait; longest > 1200*time.Millisecond {
		t.Errorf("the process may run for %s after the end of the lease", longest)
	}
}
