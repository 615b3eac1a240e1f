package scheduler

import (
	"fmt"
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

func TestOrder_PriorityThenAcceptance(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.work = lasting(20 * time.Millisecond) })
		blocker := y.enqueue("mail", "", anyJob)
		n.offer(job.Overhop, "mail", "w1", 1)
		y.until("the only seat is taken", func() bool { return y.state(blocker) == job.Active })
		var want []uint64
		for _, priority := range []int{5, 1, 9, 5, 9, 0, 1} {
			y.enqueue("mail", "", fmt.Sprintf(`{"params":{},"priority":%d}`, priority))
			y.pass(time.Millisecond)
		}
		want = []uint64{1, 4, 6, 2, 5, 3, 8, 7} // record numbers: 9 9 5 5 1 1 0
		y.until("all ran", func() bool { return y.counts().Delivered == 8 })
		for i, a := range n.startedNow() {
			if a.Position.Seq != want[i] {
				t.Errorf("start %d is record %d, want %d", i, a.Position.Seq, want[i])
			}
		}
	})
}

// Also among jobs whose folds are still in flight.
func TestOrder_PriorityInTheShadow(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		y.raft.set(func() { y.raft.delay = 50 * time.Millisecond })
		for i, priority := range []int{5, 1, 9, 5, 7, 0, 9} {
			y.enqueueIn(uint8(i%2), "mail", "", fmt.Sprintf(`{"params":{},"priority":%d}`, priority))
			y.pass(time.Millisecond)
		}
		y.pass(10 * time.Millisecond)
		y.node("n1").offer(job.Overhop, "mail", "w1", 3)
		y.until("they ran", func() bool { return y.counts().Notified == 3 })
		if pending := y.counts().Pending; pending != 4 {
			t.Errorf("%d wait", pending)
		}
		for _, o := range y.fleet.orders() {
			view, _ := y.find(o.Job)
			if view.Priority < 7 {
				t.Errorf("a job of priority %d started before all of 9 and 7", view.Priority)
			}
		}
	})
}

// Jobs of one lane and priority start in their order, also while many folds
// and placements are in flight and room comes and goes.
func TestOrder_NothingOvertakesAcrossFoldsInFlight(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		y.raft.set(func() { y.raft.delay = 12 * time.Millisecond })
		for _, name := range []string{"n1", "n2"} {
			n := y.node(name)
			n.look(func() { n.work = lasting(30 * time.Millisecond) })
			n.offer(job.Overhop, "mail", name+"-w", 7)
		}
		for i := range 600 {
			y.enqueueIn(uint8(i%2), "mail", "", anyJob)
			if i%3 == 0 {
				y.pass(time.Millisecond)
			}
		}
		y.until("all ran", func() bool { return y.counts().Delivered == 600 })
		last := [2]uint64{}
		fence := uint64(0)
		for _, o := range y.fleet.orders() {
			if o.Fence < fence {
				t.Fatalf("fence %d after %d", o.Fence, fence)
			}
			fence = o.Fence
		}
		// Within an entry batches go by node: the order is that of placements.
		for _, p := range commandsOf[*ledger.Place](y.raft.entries()) {
			for _, placement := range p.Placements {
				view, _ := y.find(placement.Job)
				if at := view.Position; at.Seq < last[at.Lane] {
					t.Errorf("record %d of lane %d was placed after %d", at.Seq, at.Lane, last[at.Lane])
				} else {
					last[at.Lane] = at.Seq
				}
			}
		}
		y.noDoubles()
	})
}

func TestLimit_IsNeverExceeded(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		const limit = 4
		y.raft.set(func() {
			y.raft.delay = 8 * time.Millisecond
			y.raft.check = func(l *ledger.Ledger) {
				if q, ok := l.Queue("tight"); ok && q.Counts[job.Active] > limit {
					t.Errorf("%d jobs of the queue are active", q.Counts[job.Active])
				}
			}
		})
		y.do(&ledger.AddQueue{ID: job.ID{1}, Name: "tight", Config: job.QueueConfig{Limit: limit}})
		for _, n := range y.fleet.nodes {
			n.offer(job.Overhop, "tight", n.name+"-w", 50)
			n.offer(job.Overhop, "free", n.name+"-w", 50)
		}
		began := time.Now()
		for range 120 {
			y.enqueue("tight", "", anyJob)
			y.enqueue("free", "", anyJob)
		}
		y.until("all ran", func() bool { return y.counts().Delivered == 240 })
		// A job runs 5 ms; two entries of 8 ms and the ride of its outcome go with it.
		if took := time.Since(began); took > 120/limit*30*time.Millisecond {
			t.Errorf("they took %v", took)
		}
		for _, e := range y.raft.entries() {
			for _, r := range e.results {
				for i, placed := range r.Placed {
					if !placed {
						t.Errorf("placement %d of an entry was refused", i)
					}
				}
			}
		}
		y.noDoubles()
	})
}

func TestPause_HoldsAndLetsGo(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.do(&ledger.AddQueue{ID: job.ID{1}, Name: "mail"})
		y.node("n1").offer(job.Overhop, "mail", "w1", 5)
		y.do(&ledger.PauseQueue{Name: "mail", Paused: true})
		id := y.enqueue("mail", "", anyJob)
		y.pass(10 * time.Second)
		if got := y.state(id); got != job.Waiting {
			t.Fatalf("the job is %s", got)
		}
		y.do(&ledger.PauseQueue{Name: "mail"})
		resumed := time.Now()
		y.until("it runs", func() bool { return y.state(id) == job.Active })
		if took := time.Since(resumed); took > 5*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

func TestDelayed_StartsAtItsTime(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 5)
		at := time.Now().Add(90 * time.Second)
		id := y.enqueue("mail", "", delayedJob(at))
		y.until("it is known", func() bool { return y.state(id) == job.Delayed })
		y.raft.set(func() { y.raft.delay = 30 * time.Millisecond })
		y.pass(89 * time.Second)
		if got := y.state(id); got != job.Delayed {
			t.Fatalf("it is %s early", got)
		}
		y.until("it runs", func() bool { return y.state(id) == job.Active })
		if late := time.Since(at); late < 0 || late > 95*time.Millisecond { // two entries, and one before them
			t.Errorf("it ran %v after its time", late)
		}
		promoting := 0
		for _, e := range y.raft.entries() {
			if o, ok := e.Commands[0].(*ledger.Observe); ok && len(o.Observations) == 0 {
				promoting++
			}
		}
		if promoting != 1 {
			t.Errorf("%d entries were there for their time alone", promoting)
		}
	})
}

func delayedJob(at time.Time) string {
	return fmt.Sprintf(`{"params":{},"run_at":%q}`, at.UTC().Format(time.RFC3339Nano))
}

func TestDelayed_ManyAtOnce(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		at := time.Now().Add(10 * time.Second)
		for range 5000 {
			y.lanes.store(0, "mail", "", delayedJob(at))
		}
		y.pass(at.Sub(time.Now()) - time.Millisecond)
		if c := y.counts(); c.Pending != 0 {
			t.Errorf("%d wait early", c.Pending)
		}
		y.until("all wait", func() bool { return y.counts().Pending == 5000 })
		if late := time.Since(at); late > 30*time.Millisecond {
			t.Errorf("it took %v", late)
		}
	})
}

func TestRetry_BacksOffThenDies(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() {
			n.work = ending(job.Outcome{Status: job.Error, Started: true, Fault: &job.Fault{Message: "no such address", Details: []byte(`{"x":1}`)}})
		})
		n.offer(job.Overhop, "mail", "w1", 1)
		id := y.enqueue("mail", "", `{"params":{},"max_attempts":3}`)
		var starts []time.Time
		y.until("it is dead", func() bool {
			if orders := y.fleet.orders(); len(orders) > len(starts) {
				starts = append(starts, orders[len(starts)].at)
			}
			return y.state(id) == job.Failed
		})
		if len(starts) != 3 {
			t.Fatalf("it ran %d times", len(starts))
		}
		for i, want := range []time.Duration{5 * time.Second, 10 * time.Second} {
			if got := starts[i+1].Sub(starts[i]); got < want || got > want+30*time.Millisecond {
				t.Errorf("attempt %d came %v after the one before, want %v", i+2, got, want)
			}
		}
		for i, a := range n.startedNow() {
			if int(a.Attempt) != i+1 || int(a.N) != i+1 || a.MaxAttempts != 3 {
				t.Errorf("start %d is dispatch %d, attempt %d of %d", i, a.N, a.Attempt, a.MaxAttempts)
			}
		}
		y.until("its dead letter", func() bool { return y.tales.items(DeadLetters) == 1 })
		y.until("the flight is over", func() bool { return y.flights() == 0 })
	})
}

// flights counts the dispatches that the tenure follows.
func (y *yard) flights() (n int) {
	m := y.sched.tenure()
	done := make(chan struct{})
	m.post(func() { n = len(m.flights); close(done) })
	select {
	case <-done:
	case <-m.gone:
	}
	return n
}

func TestRoutes_WhoRunsWhat(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.runners = []string{"py", "go"}; n.beat() })
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
			want[y.enqueue(test.queue, "", test.body)] = test.worker
		}
		y.until("the runners' ran", func() bool { return y.counts().Delivered == 5 })
		n.offer(job.Overhop, "routed", "w0", 9) // nothing of a routed queue is for workers
		n.offer(job.Overhop, "mail", "w1", 9)
		want[y.enqueue("mail", "", tests[5].body)] = tests[5].worker
		y.enqueue("routed", "", anyJob)
		y.until("all ran", func() bool { return y.counts().Delivered == 7 })
		for _, a := range n.startedNow() {
			if w, ok := want[a.Job]; ok && w != a.Worker || a.Worker == "w0" {
				t.Errorf("%s of queue %s ran on %s, want %s", a.Function, a.Queue, a.Worker, w)
			}
		}
	}, func(c *Config) { c.Routes = map[string]string{"routed": "go"}; c.DefaultRunner = "py" })
}

func TestOrphans_WaitUntilEveryMemberWasHeard(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		for _, name := range []string{"n1", "n2"} {
			n := y.node(name)
			n.look(func() { n.runners = []string{"py"}; n.beat() })
		}
		n3 := y.node("n3")
		if err := y.end(); err != nil {
			t.Fatal(err)
		}
		n3.look(func() { n3.silent = true })
		y.begin()
		lost := y.enqueue("mail", "", `{"function":"rust#f"}`)
		routed := y.enqueue("routed", "", `{"function":"f"}`)
		kept := y.enqueue("mail", "", `{"function":"py#f"}`)
		bare := y.enqueue("mail", "", `{"function":"f"}`)
		y.pass(20 * time.Second)
		if got := y.state(lost); got != job.Waiting {
			t.Fatalf("it is %s, though a member was not heard", got)
		}
		y.says("rust, which no member that was heard has; not heard yet: n3")
		n3.look(func() { n3.silent = false; n3.runners = []string{"py"}; n3.beat() })
		y.until("it is dead", func() bool { return y.state(lost) == job.Failed && y.state(routed) == job.Failed })
		view, _ := y.find(lost)
		if view.Reason != "No runner configured for 'rust'." {
			t.Errorf("reason %q", view.Reason)
		}
		y.pass(5 * time.Second)
		if y.state(kept) != job.Waiting || y.state(bare) != job.Waiting {
			t.Errorf("the others are %s and %s", y.state(kept), y.state(bare))
		}
	}, func(c *Config) { c.Routes = map[string]string{"routed": "ruby"} })
}

// A job whose runner only a member has that is down waits for it, and the
// authority says so.
func TestOrphans_WaitForAMemberThatIsDown(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		n1, n2 := y.node("n1"), y.node("n2")
		n1.look(func() { n1.runners = []string{"py"}; n1.beat() })
		n2.look(func() { n2.runners = []string{"rust"}; n2.beat() })
		n2.offer(job.RRQ, "rust", "rust/9000", 1)
		y.pass(time.Second)
		n2.look(func() { n2.silent = true })
		y.pass(10 * time.Second)
		id := y.enqueue("mail", "", `{"function":"rust#f"}`)
		y.pass(20 * time.Second)
		if got := y.state(id); got != job.Waiting {
			t.Fatalf("it is %s, though a member that is down has its runner", got)
		}
		y.says("rust, which only members that are down have: n2")
		n2.look(func() { n2.silent = false; n2.beat() })
		y.until("it ran", func() bool { return y.state(id) == job.Completed })
		y.pass(3 * time.Second)
		y.says("")
	})
}

func TestCancel_ActiveJobIsRecalledUntilItEnds(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.work = forever })
		n.offer(job.Overhop, "mail", "w1", 1)
		id := y.enqueue("mail", "", anyJob)
		y.until("it runs", func() bool { return y.state(id) == job.Active })
		n.look(func() { n.silent = true }) // the first recall gets lost
		if r := y.do(&ledger.CancelJob{Job: id, Reason: "no more"}); r.Err != nil || r.State != job.Active {
			t.Fatalf("answer %+v", r)
		}
		y.pass(500 * time.Millisecond)
		n.look(func() { n.silent = false })
		y.until("it has ended", func() bool { return y.state(id) == job.Failed })
		n.look(func() {
			if len(n.recalled) == 0 || n.recalled[0].Job != id || n.recalled[0].Reason != job.RecallCancelled || n.recalled[0].Epoch == 0 {
				t.Errorf("recalls %+v", n.recalled)
			}
		})
	})
}

func TestCancel_OfAJobWhoseNodeDies(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.work = forever })
		n.offer(job.RRQ, "demo", "w1", 1)
		id := y.enqueue("mail", "", `{"function":"demo#hang"}`)
		y.until("it runs", func() bool { return y.state(id) == job.Active })
		n.look(func() { n.silent = true })
		y.do(&ledger.CancelJob{Job: id, Reason: "no more"})
		y.until("it has ended", func() bool { return y.state(id) == job.Failed })
		if v, _ := y.find(id); v.Reason != job.ReasonCancelled || v.Fault == nil || v.Fault.Type != job.FaultCancelled {
			t.Errorf("it ended with %q, %+v", v.Reason, v.Fault)
		}
	})
}

func TestCancel_SurvivesTheTenure(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.work = forever })
		n.offer(job.Overhop, "mail", "w1", 1)
		id := y.enqueue("mail", "", anyJob)
		y.until("it runs", func() bool { return y.state(id) == job.Active })
		n.look(func() { n.silent = true })
		y.do(&ledger.CancelJob{Job: id, Reason: "no more", QueueGone: true})
		if err := y.end(); err != nil {
			t.Fatal(err)
		}
		n.look(func() { n.silent, n.recalled = false, nil })
		y.begin()
		y.until("it has ended", func() bool { return y.state(id) == job.Failed })
		if n.recalls(job.RecallQueueGone) == 0 || n.recalls(job.RecallCancelled) > 0 {
			t.Errorf("recalls %+v", n.recalled)
		}
	})
}
