package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

func TestOrder_PriorityThenAcceptance(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.work = worksFor(20 * time.Millisecond) })
		blocker := h.enqueue("mail", "", anyJob)
		n.offer(job.Overhop, "mail", "w1", 1)
		h.until("the only slot is taken", func() bool { return h.state(blocker) == job.Active })
		var want []uint64
		for _, priority := range []int{5, 1, 9, 5, 9, 0, 1} {
			h.enqueue("mail", "", fmt.Sprintf(`{"params":{},"priority":%d}`, priority))
			h.advance(time.Millisecond)
		}
		want = []uint64{1, 4, 6, 2, 5, 3, 8, 7} // record numbers: 9 9 5 5 1 1 0
		h.until("all ran", func() bool { return h.counts().Delivered == 8 })
		for i, a := range n.startedNow() {
			if a.Position.Seq != want[i] {
				t.Errorf("start %d is record %d, want %d", i, a.Position.Seq, want[i])
			}
		}
	})
}

// TestOrder_PriorityOfProvisionalJobs checks that priorities hold among jobs
// whose ingests are in flight.
func TestOrder_PriorityOfProvisionalJobs(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		h.raft.set(func() { h.raft.delay = 50 * time.Millisecond })
		for i, priority := range []int{5, 1, 9, 5, 7, 0, 9} {
			h.enqueueIn(uint8(i%2), "mail", "", fmt.Sprintf(`{"params":{},"priority":%d}`, priority))
			h.advance(time.Millisecond)
		}
		h.advance(10 * time.Millisecond)
		h.node("n1").offer(job.Overhop, "mail", "w1", 3)
		h.until("they ran", func() bool { return h.counts().Notified == 3 })
		if pending := h.counts().Pending; pending != 4 {
			t.Errorf("%d wait", pending)
		}
		for _, o := range h.fleet.assignments() {
			view, _ := h.find(o.Job)
			if view.Priority < 7 {
				t.Errorf("a job of priority %d started before all of 9 and 7", view.Priority)
			}
		}
	})
}

// TestOrder_AcrossIngestsInFlight checks that jobs of one lane and priority
// start in order while many ingests and placements are in flight and capacity
// changes.
func TestOrder_AcrossIngestsInFlight(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		h.raft.set(func() { h.raft.delay = 12 * time.Millisecond })
		for _, name := range []string{"n1", "n2"} {
			n := h.node(name)
			n.do(func() { n.work = worksFor(30 * time.Millisecond) })
			n.offer(job.Overhop, "mail", name+"-w", 7)
		}
		stored := map[job.ID]job.Position{} // where each record was before it was perhaps relocated
		for i := range 600 {
			id := h.enqueueIn(uint8(i%2), "mail", "", anyJob)
			stored[id] = job.Position{Lane: uint8(i % 2), Seq: uint64(i/2 + 1)}
			if i%3 == 0 {
				h.advance(time.Millisecond)
			}
		}
		h.until("all ran", func() bool { return h.counts().Delivered == 600 })
		last := [2]uint64{}
		fence := uint64(0)
		for _, o := range h.fleet.assignments() {
			if o.Fence < fence {
				t.Fatalf("fence %d after %d", o.Fence, fence)
			}
			fence = o.Fence
		}
		// Batches of one entry are sent by node, so the order is checked by placements.
		for _, p := range commandsOf[*ledger.Place](h.raft.entries()) {
			for _, placement := range p.Placements {
				if at := stored[placement.Job]; at.Seq < last[at.Lane] {
					t.Errorf("record %d of lane %d was placed after %d", at.Seq, at.Lane, last[at.Lane])
				} else {
					last[at.Lane] = at.Seq
				}
			}
		}
		h.checkNoOverlap()
	})
}

func TestLimit_IsNeverExceeded(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		const limit = 4
		h.raft.set(func() {
			h.raft.delay = 8 * time.Millisecond
			h.raft.check = func(l *ledger.Ledger) {
				if q, ok := l.Queue("tight"); ok && q.Counts[job.Active] > limit {
					t.Errorf("%d jobs of the queue are active", q.Counts[job.Active])
				}
			}
		})
		h.propose(&ledger.AddQueue{ID: job.ID{1}, Name: "tight", Config: job.QueueConfig{Limit: limit}})
		for _, n := range h.fleet.nodes {
			n.offer(job.Overhop, "tight", n.name+"-w", 50)
			n.offer(job.Overhop, "free", n.name+"-w", 50)
		}
		began := time.Now()
		for range 120 {
			h.enqueue("tight", "", anyJob)
			h.enqueue("free", "", anyJob)
		}
		h.until("all ran", func() bool { return h.counts().Delivered == 240 })
		// A job runs for 5 ms and takes two entries of 8 ms and the wait of its outcome.
		if took := time.Since(began); took > 120/limit*30*time.Millisecond {
			t.Errorf("they took %v", took)
		}
		for _, e := range h.raft.entries() {
			for _, r := range e.results {
				for i, placed := range r.Placed {
					if !placed {
						t.Errorf("placement %d of an entry was refused", i)
					}
				}
			}
		}
		h.checkNoOverlap()
	})
}

func TestPause_StopsAndResumes(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.propose(&ledger.AddQueue{ID: job.ID{1}, Name: "mail"})
		h.node("n1").offer(job.Overhop, "mail", "w1", 5)
		h.propose(&ledger.PauseQueue{Name: "mail", Paused: true})
		id := h.enqueue("mail", "", anyJob)
		h.advance(10 * time.Second)
		if got := h.state(id); got != job.Waiting {
			t.Fatalf("the job is %s", got)
		}
		h.propose(&ledger.PauseQueue{Name: "mail"})
		resumed := time.Now()
		h.until("it runs", func() bool { return h.state(id) == job.Active })
		if took := time.Since(resumed); took > 5*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// A raised limit starts the next job at once, a lowered one none until enough have ended.
func TestLimit_IsChanged(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		limit := func(n uint32) { h.propose(&ledger.ChangeQueue{Name: "mail", Change: job.QueueChange{Limit: &n}}) }
		active := func() int { return int(h.counts().Notified) }
		h.propose(&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{Limit: 1}})
		n1 := h.node("n1")
		n1.work = func(*job.Assignment) (time.Duration, job.Outcome) { return -1, job.Outcome{} } // jobs never end
		n1.offer(job.Overhop, "mail", "w1", 9)
		for range 4 {
			h.enqueue("mail", "", anyJob)
		}
		h.until("one runs", func() bool { return active() == 1 })
		limit(3)
		raised := time.Now()
		h.until("three run", func() bool { return active() == 3 })
		if took := time.Since(raised); took > 5*time.Millisecond {
			t.Errorf("the raised limit took %v", took)
		}
		limit(2)
		h.advance(10 * time.Second)
		if active() != 3 {
			t.Errorf("%d jobs run after the limit was lowered", active())
		}
	})
}

func TestDelayed_StartsAtItsTime(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 5)
		at := time.Now().Add(90 * time.Second)
		id := h.enqueue("mail", "", delayedJob(at))
		h.until("it is known", func() bool { return h.state(id) == job.Delayed })
		h.raft.set(func() { h.raft.delay = 30 * time.Millisecond })
		h.advance(89 * time.Second)
		if got := h.state(id); got != job.Delayed {
			t.Fatalf("it is %s early", got)
		}
		h.until("it runs", func() bool { return h.state(id) == job.Active })
		if late := time.Since(at); late < 0 || late > 95*time.Millisecond { // two entries, and one in flight before them
			t.Errorf("it ran %v after its time", late)
		}
		promoting := 0
		for _, e := range h.raft.entries() {
			if o, ok := e.Commands[0].(*ledger.Observe); ok && len(o.Observations) == 0 {
				promoting++
			}
		}
		if promoting != 1 {
			t.Errorf("%d entries had no other purpose than their time", promoting)
		}
	})
}

func delayedJob(at time.Time) string {
	return fmt.Sprintf(`{"params":{},"run_at":%q}`, at.UTC().Format(time.RFC3339Nano))
}

func TestDelayed_ManyAtOnce(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		at := time.Now().Add(10 * time.Second)
		for range 5000 {
			h.lanes.store(0, "mail", "", delayedJob(at))
		}
		h.advance(at.Sub(time.Now()) - time.Millisecond)
		if c := h.counts(); c.Pending != 0 {
			t.Errorf("%d wait early", c.Pending)
		}
		h.until("all wait", func() bool { return h.counts().Pending == 5000 })
		if late := time.Since(at); late > 30*time.Millisecond {
			t.Errorf("it took %v", late)
		}
	})
}

func TestRetry_BacksOffThenFails(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() {
			n.work = endsWith(job.Outcome{Status: job.Error, Started: true, Fault: &job.Fault{Message: "no such address", Details: []byte(`{"x":1}`)}})
		})
		n.offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", `{"params":{},"max_attempts":3}`)
		var starts []time.Time
		h.until("it is dead", func() bool {
			if assigned := h.fleet.assignments(); len(assigned) > len(starts) {
				starts = append(starts, assigned[len(starts)].at)
			}
			return h.state(id) == job.Failed
		})
		if len(starts) != 3 {
			t.Fatalf("it ran %d times", len(starts))
		}
		for i, want := range []time.Duration{5 * time.Second, 10 * time.Second} {
			longest := want + want*time.Duration(job.DefaultPolicy.Jitter)/100 + 30*time.Millisecond
			if got := starts[i+1].Sub(starts[i]); got < want || got > longest {
				t.Errorf("attempt %d came %v after the one before, want %v to %v", i+2, got, want, longest)
			}
		}
		for i, a := range n.startedNow() {
			if int(a.Attempt) != i+1 || int(a.N) != i+1 || a.MaxAttempts != 3 {
				t.Errorf("start %d is dispatch %d, attempt %d of %d", i, a.N, a.Attempt, a.MaxAttempts)
			}
		}
		h.until("its dead letter", func() bool { return h.streams.itemCount(outbox.DeadLetters) == 1 })
		h.until("the tenure has dropped the dispatch", func() bool { return h.dispatchCount() == 0 })
	})
}

// dispatchCount returns the number of the tenure's dispatches.
func (h *harness) dispatchCount() (n int) {
	tenure := h.sched.current()
	done := make(chan struct{})
	tenure.loop.post(func() { n = len(tenure.dispatches.running); close(done) })
	select {
	case <-done:
	case <-tenure.loop.done:
	}
	return n
}

func TestRoutes_ChooseExecutor(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.runners = []string{"py", "go"}; n.heartbeat() })
		n.offer(job.RRQ, "py", "py/9000", 9)
		n.offer(job.RRQ, "go", "go/9100", 9)
		tests := []struct{ queue, body, worker string }{
			{"routed", `{"function":"f"}`, "go/9100"},
			{"routed", `{"params":{}}`, "go/9100"},
			{"routed", `{"function":"py#f"}`, "py/9000"},
			{"mail", `{"function":"go#f"}`, "go/9100"},
			{"mail", `{"function":"f"}`, "py/9000"},
			{"mail", `{"params":{}}`, "w1"},
		}
		want := map[job.ID]string{}
		for _, test := range tests[:5] {
			want[h.enqueue(test.queue, "", test.body)] = test.worker
		}
		h.until("jobs of runners ran", func() bool { return h.counts().Delivered == 5 })
		n.offer(job.Overhop, "routed", "w0", 9) // workers get no jobs of a routed queue
		n.offer(job.Overhop, "mail", "w1", 9)
		want[h.enqueue("mail", "", tests[5].body)] = tests[5].worker
		h.enqueue("routed", "", anyJob)
		h.until("all ran", func() bool { return h.counts().Delivered == 7 })
		for _, a := range n.startedNow() {
			if w, ok := want[a.Job]; ok && w != a.Worker || a.Worker == "w0" {
				t.Errorf("%s of queue %s ran on %s, want %s", a.Function, a.Queue, a.Worker, w)
			}
		}
	}, func(c *Config) { c.Routes = map[string]string{"routed": "go"}; c.DefaultRunner = "py" })
}

func TestOrphans_WaitForAllMembers(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		for _, name := range []string{"n1", "n2"} {
			n := h.node(name)
			n.do(func() { n.runners = []string{"py"}; n.heartbeat() })
		}
		n3 := h.node("n3")
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
		n3.do(func() { n3.silent = true })
		h.begin()
		lost := h.enqueue("mail", "", `{"function":"rust#f"}`)
		routed := h.enqueue("routed", "", `{"function":"f"}`)
		kept := h.enqueue("mail", "", `{"function":"py#f"}`)
		bare := h.enqueue("mail", "", `{"function":"f"}`)
		h.advance(20 * time.Second)
		if got := h.state(lost); got != job.Waiting {
			t.Fatalf("the job is %s before all members have sent heartbeats", got)
		}
		h.wantReason("rust, which no member with a heartbeat has; no heartbeat yet from: n3")
		n3.do(func() { n3.silent = false; n3.runners = []string{"py"}; n3.heartbeat() })
		h.until("it is dead", func() bool { return h.state(lost) == job.Failed && h.state(routed) == job.Failed })
		view, _ := h.find(lost)
		if view.Reason != "No runner configured for 'rust'." {
			t.Errorf("reason %q", view.Reason)
		}
		h.advance(5 * time.Second)
		if h.state(kept) != job.Waiting || h.state(bare) != job.Waiting {
			t.Errorf("the others are %s and %s", h.state(kept), h.state(bare))
		}
	}, func(c *Config) { c.Routes = map[string]string{"routed": "ruby"} })
}

// TestOrphans_WaitForDownMember checks that jobs wait if only a member that is
// down has their runner, and that the authority reports it.
func TestOrphans_WaitForDownMember(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		n1, n2 := h.node("n1"), h.node("n2")
		n1.do(func() { n1.runners = []string{"py"}; n1.heartbeat() })
		n2.do(func() { n2.runners = []string{"rust"}; n2.heartbeat() })
		n2.offer(job.RRQ, "rust", "rust/9000", 1)
		h.advance(time.Second)
		n2.do(func() { n2.silent = true })
		h.advance(10 * time.Second)
		id := h.enqueue("mail", "", `{"function":"rust#f"}`)
		h.advance(20 * time.Second)
		if got := h.state(id); got != job.Waiting {
			t.Fatalf("the job is %s, though a member that is down has its runner", got)
		}
		h.wantReason("rust, which only members that are down have: n2")
		n2.do(func() { n2.silent = false; n2.heartbeat() })
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		h.advance(3 * time.Second)
		h.wantReason("")
	})
}

func TestCancel_RecallsActiveJob(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.work = neverEnds })
		n.offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", anyJob)
		h.until("it runs", func() bool { return h.state(id) == job.Active })
		n.do(func() { n.silent = true }) // the first recall gets lost
		if r := h.propose(&ledger.CancelJob{Job: id, Reason: "no more"}); r.Err != nil || r.State != job.Active {
			t.Fatalf("answer %+v", r)
		}
		h.advance(500 * time.Millisecond)
		n.do(func() { n.silent = false })
		h.until("it has ended", func() bool { return h.state(id) == job.Cancelled })
		n.do(func() {
			if len(n.recalled) == 0 || n.recalled[0].Job != id || n.recalled[0].Reason != job.RecallCancelled || n.recalled[0].Epoch == 0 {
				t.Errorf("recalls %+v", n.recalled)
			}
		})
	})
}

func TestOperation_RecallsActiveJob(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.work = neverEnds })
		n.offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", anyJob)
		h.until("it runs", func() bool { return h.state(id) == job.Active })
		step := &ledger.StepOperation{Number: 1, To: ledger.JobPlace{ID: id}, Jobs: []ledger.OperationJob{{Job: id, N: 1, State: job.Active}}}
		for _, c := range []ledger.Command{&ledger.StartOperation{Settings: ledger.OperationSettings{Action: ledger.OperationCancel, Until: time.Now()}}, step} {
			if r := h.propose(c); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		h.until("it has ended", func() bool { return h.state(id) == job.Cancelled })
		n.do(func() {
			if len(n.recalled) == 0 || n.recalled[0].Job != id || n.recalled[0].Reason != job.RecallCancelled {
				t.Errorf("recalls %+v", n.recalled)
			}
		})
	})
}

func TestCancel_NodeDies(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.work = neverEnds })
		n.offer(job.RRQ, "demo", "w1", 1)
		id := h.enqueue("mail", "", `{"function":"demo#hang"}`)
		h.until("it runs", func() bool { return h.state(id) == job.Active })
		n.do(func() { n.silent = true })
		h.propose(&ledger.CancelJob{Job: id, Reason: "no more"})
		h.until("it has ended", func() bool { return h.state(id) == job.Cancelled })
		if v, _ := h.find(id); v.Reason != job.ReasonCancelled || v.Fault == nil || v.Fault.Type != job.FaultCancelled {
			t.Errorf("it ended with %q, %+v", v.Reason, v.Fault)
		}
	})
}

func TestCancel_SurvivesTheTenure(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.work = neverEnds })
		n.offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", anyJob)
		h.until("it runs", func() bool { return h.state(id) == job.Active })
		n.do(func() { n.silent = true })
		h.propose(&ledger.CancelJob{Job: id, Reason: "no more", QueueGone: true})
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
		n.do(func() { n.silent, n.recalled = false, nil })
		h.begin()
		h.until("it has ended", func() bool { return h.state(id) == job.Cancelled })
		if n.recalls(job.RecallQueueGone) == 0 || n.recalls(job.RecallCancelled) > 0 {
			t.Errorf("recalls %+v", n.recalled)
		}
	})
}
