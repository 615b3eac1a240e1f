package runnerpool

import (
	"strconv"
	"testing"
	"time"

	"yardmaster/job"
)

// awaitSent waits until the request is on its way: a dispatch that the runner
// has not seen ends otherwise.
func (y *yard) awaitSent(a job.Assignment) { y.t.Helper(); y.awaitWait(a, "") }

// awaitWait waits until a slot waits for an answer, being on the ladder for
// that reason.
func (y *yard) awaitWait(a job.Assignment, why job.RecallReason) {
	y.t.Helper()
	late, tick := time.After(patience), time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		y.Pools.mu.Lock()
		d := y.running[key{a.Job, a.N}]
		y.Pools.mu.Unlock()
		d.mu.Lock()
		sent := d.conn != nil && d.why == why && !d.alarm
		d.mu.Unlock()
		if sent {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			y.t.Fatal("request not sent")
		}
	}
}

// A runner that heeds the cancel is spared, whatever the reason.
func TestStopGently(t *testing.T) {
	y := startYard(t, testConfig("", func(c *RunnerConfig) { c.CancelGrace = few(5) }))
	before := y.pid()
	for _, test := range []struct {
		why    job.RecallReason
		status job.Status
		text   string
	}{
		{job.RecallCancelled, job.Cancelled, "Job cancelled"},
		{job.RecallQueueGone, job.Cancelled, "Job cancelled"},
		{job.RecallDeadline, job.TimedOut, "Job timed out after 10s."},
		{job.RecallShutdown, job.Interrupted, "Job execution interrupted by node shutdown"},
		{job.RecallSuperseded, job.Lost, "another dispatch has taken this one's place"},
		{job.RecallLease, job.Lost, "the node's lease ended"},
	} {
		a := y.begin("wait", nil)
		y.awaitSent(a)
		y.Stop(a.Job, a.N, test.why)
		y.Stop(a.Job, a.N, test.why)
		y.expect(y.awaitOutcome(), test.status, true, test.text)
	}
	y.Stop(job.ID{1}, 1, job.RecallCancelled) // unknown: ignored
	if y.pid() != before {
		t.Error("a runner that heeds cancels was replaced")
	}
}

// Without cancel hints a handler alone in its process is ended with it, and one
// that is not is told, for the sake of its neighbours.
func TestStopWithoutHints(t *testing.T) {
	cfg := testConfig("", func(c *RunnerConfig) { c.CancelGrace, c.MaxInFlight = few(5), 2 })
	off := false
	cfg.CancelHints = &off
	y := startYard(t, cfg)
	w := y.awaitOffer(2)
	first, second := assignment(1, "wait", w), assignment(2, "wait", w)
	for _, a := range []job.Assignment{first, second} {
		if !y.Start(a, specOf(`{}`)) {
			t.Fatal("not started")
		}
		y.awaitSent(a)
	}
	before := y.Status()[0].Members[0].PID
	y.Stop(first.Job, first.N, job.RecallCancelled)
	y.expect(y.awaitOutcome(), job.Cancelled, true, "Job cancelled")
	if s := y.Status()[0].Members[0]; s.PID != before || s.InFlight != 1 {
		t.Errorf("the neighbour was not spared: %+v", s)
	}
	y.Stop(second.Job, second.N, job.RecallCancelled)
	y.expect(y.awaitOutcome(), job.Cancelled, true, "Job cancelled")
	y.n = 2
	if y.pid() == strconv.Itoa(before) {
		t.Error("a process with a stopped handler lives on without having been asked")
	}
}

// What has ended well in the meantime has ended well.
func TestStopTooLate(t *testing.T) {
	y := startYard(t, testConfig("", nil))
	a := y.begin("late", nil)
	y.awaitSent(a)
	y.Stop(a.Job, a.N, job.RecallCancelled)
	y.expect(y.awaitOutcome(), job.Success, true, "")
	y.expect(y.do("late", within(200*time.Millisecond)), job.Success, true, "") // within the slack
}

func TestStopByForce(t *testing.T) {
	for _, mode := range []string{"good", "ignores-term"} {
		t.Run(mode, func(t *testing.T) {
			y := startYard(t, testConfig(mode, nil))
			before := y.pid()
			y.expect(y.do("hang", within(200*time.Millisecond)), job.TimedOut, true, "Job timed out after 0.2s.")
			between := y.pid()
			a := y.begin("hang", nil)
			y.awaitSent(a)
			y.Stop(a.Job, a.N, job.RecallCancelled)
			y.expect(y.awaitOutcome(), job.Cancelled, true, "Job cancelled")
			if after := y.pid(); before == between || between == after {
				t.Errorf("pids are %s, %s, %s; want three", before, between, after)
			}
		})
	}
}

// The end of the lease leaves no time for graces.
func TestLeaseEndsAtOnce(t *testing.T) {
	cfg := testConfig("ignores-term", func(c *RunnerConfig) { c.CancelGrace = few(3600) })
	cfg.TermGrace = few(3600)
	y := startYard(t, cfg)
	for first, status := range map[job.RecallReason]job.Status{
		job.RecallLease:     job.Lost,
		job.RecallShutdown:  job.Lost,
		job.RecallCancelled: job.Cancelled, // final, and the handler has stopped
	} {
		a := y.begin("hang", nil)
		y.awaitSent(a)
		y.Stop(a.Job, a.N, first)
		if first != job.RecallLease {
			y.awaitWait(a, first)
		}
		y.Stop(a.Job, a.N, job.RecallLease)
		if o := y.awaitOutcome(); o.Status != status { // it comes long before an hour has passed
			t.Errorf("%s: outcome is %s", first, o.Status)
		}
	}
	// A runner that ignores SIGTERM would hold up the test for an hour.
	a := y.begin("pid", nil)
	y.awaitOutcome()
	y.Pools.mu.Lock()
	w := y.workers[a.Worker]
	y.Pools.mu.Unlock()
	w.proc.kill()
	<-w.proc.exited
}

// A stuck request takes its process with it, but its neighbours may finish.
func TestNeighboursOfAStuckRequest(t *testing.T) {
	cfg := testConfig("", func(c *RunnerConfig) { c.MaxInFlight = 3 })
	cfg.TermGrace = few(1.5)
	y := startYard(t, cfg)
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
		t.Error("a dispatch that runs already was refused")
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
	y := startYard(t, testConfig("", nil))
	a := y.begin("hang", nil)
	y.awaitSent(a)
	y.stop()
	y.expect(y.awaitOutcome(), job.Interrupted, true, "Job execution interrupted by node shutdown")
	if y.Start(assignment(99, "echo", a.Worker), specOf(`{}`)) {
		t.Error("a draining pool takes work")
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
