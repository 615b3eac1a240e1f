package scheduler

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

func TestNoCapacity_GivesTheAttemptBack(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.offer(job.Overhop, "mail", "w1", 3)
		h.advance(20 * time.Millisecond)
		reports := 0
		n.do(func() { n.refuse = job.NoCapacity; n.noFullReports = true; reports = n.reports })
		id := h.enqueue("mail", "", anyJob)
		h.advance(30 * time.Second)
		refused := len(h.fleet.assignments())
		// Asked for all offers, the node offers capacity again. The authority may
		// use each offer once.
		n.do(func() { reports = n.reports - reports })
		if refused < 2 || refused > reports+1 || refused > 40 {
			t.Errorf("%d assignments went to the node that refuses them, after %d reports", refused, reports)
		}
		n.do(func() { n.refuse = 0 })
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		a := n.startedNow()[0]
		if a.Attempt != 1 || int(a.N) != refused+1 && int(a.N) != refused+2 || !a.Redelivered {
			t.Errorf("dispatch %d, attempt %d, redelivered %v, after %d refusals", a.N, a.Attempt, a.Redelivered, refused)
		}
		view, _ := h.find(id)
		if view.Losses != 0 {
			t.Errorf("%d losses", view.Losses)
		}
	})
}

func TestDraining_NodeGetsNoAssignments(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		n1, n2 := h.node("n1"), h.node("n2")
		n1.offer(job.Overhop, "mail", "w1", 3)
		h.advance(20 * time.Millisecond)
		n1.do(func() { n1.refuse = job.Draining })
		id := h.enqueue("mail", "", anyJob)
		h.advance(100 * time.Millisecond)
		if n := len(h.fleet.assignments()); n != 1 {
			t.Errorf("%d assignments were sent", n)
		}
		n2.offer(job.Overhop, "mail", "w2", 1)
		h.until("the other node ran it", func() bool { return h.state(id) == job.Completed })
		n1.do(func() { n1.refuse = 0 })
		n2.offer(job.Overhop, "mail", "w2", 0)
		again := h.enqueue("mail", "", anyJob)
		h.until("it ran where it was refused before", func() bool { return h.state(again) == job.Completed })
	})
}

func TestSilentNode_JobsRunElsewhere(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		n1, n2 := h.node("n1"), h.node("n2")
		n1.do(func() { n1.work = neverEnds })
		n1.offer(job.Overhop, "mail", "w1", 4)
		n1.offer(job.RRQ, "py", "py/9000", 4)
		ids := []job.ID{h.enqueue("mail", "", anyJob), h.enqueue("mail", "", `{"function":"py#f"}`)}
		h.until("they run", func() bool { return h.counts().Notified == 2 })
		n2.offer(job.Overhop, "mail", "w2", 4)
		n2.offer(job.RRQ, "py", "py/9001", 4)
		h.advance(trustTime - nodeLease) // leases of an earlier authority count no longer
		n1.do(func() { n1.silent = true })
		cut := time.Now()
		h.advance(3 * time.Second)
		third := h.enqueue("mail", "", anyJob) // must not go to the silent node
		h.until("it ran", func() bool { return h.state(third) == job.Completed })
		h.until("they ran", func() bool { return h.state(ids[0]) == job.Completed && h.state(ids[1]) == job.Completed })
		if took := time.Since(cut); took < reassignAfter-time.Second || took > reassignAfter+500*time.Millisecond {
			t.Errorf("they ran %v after the node fell silent", took)
		}
		for _, a := range n2.startedNow()[1:] {
			if a.N != 2 || a.Attempt != 1 || !a.Redelivered {
				t.Errorf("dispatch %d, attempt %d, redelivered %v", a.N, a.Attempt, a.Redelivered)
			}
		}
		h.checkNoOverlap() // n1 has stopped its executions when its lease expired
		n1.do(func() { n1.silent = false })
		h.until("its outcomes are heard", func() bool {
			stale := 0
			n1.do(func() {
				for _, s := range n1.settled {
					if s.Stale {
						stale++
					}
				}
			})
			return stale == 2
		})
		h.raft.View(func(l *ledger.Ledger) {
			if l.Stale() != 2 {
				t.Errorf("%d stale outcomes are counted", l.Stale())
			}
		})
		view, _ := h.find(ids[0])
		if view.Losses != 1 || view.State != job.Completed {
			t.Errorf("%d losses, %s", view.Losses, view.State)
		}
	})
}

func TestRestartedNode_EndsRunnersThenWorkers(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		n1, n2 := h.node("n1"), h.node("n2")
		n1.do(func() { n1.work = neverEnds })
		n1.offer(job.Overhop, "mail", "w1", 4)
		n1.offer(job.RRQ, "py", "py/9000", 4)
		worker, runner := h.enqueue("mail", "", anyJob), h.enqueue("mail", "", `{"function":"py#f"}`)
		h.until("they run", func() bool { return h.counts().Notified == 2 })
		n2.offer(job.Overhop, "mail", "w2", 4)
		n2.offer(job.RRQ, "py", "py/9001", 4)
		n1.restart()
		began := time.Now()
		h.until("the runner's job ran", func() bool { return h.state(runner) == job.Completed })
		if took := time.Since(began); took > 2*sweepInterval {
			t.Errorf("it took %v", took)
		}
		h.until("the worker's job ran", func() bool { return h.state(worker) == job.Completed })
		if took := time.Since(began); took < workerLease || took > workerLease+2*time.Second {
			t.Errorf("it took %v", took)
		}
		h.checkNoOverlap()
	})
}

// TestRestartedNode_RevokesPlacementsInFlight checks that a node which
// restarts while placements on its previous incarnation are in flight does not
// get them.
func TestRestartedNode_RevokesPlacementsInFlight(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		h.raft.set(func() { h.raft.delay = 50 * time.Millisecond })
		n.offer(job.Overhop, "mail", "w1", 1)
		h.advance(20 * time.Millisecond)
		id := h.enqueue("mail", "", anyJob)
		h.advance(5 * time.Millisecond)
		n.restart()
		n.offer(job.Overhop, "mail", "w1", 1)
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		for _, a := range n.startedNow() {
			if a.N != 2 {
				t.Errorf("dispatch %d was sent to the new incarnation", a.N)
			}
		}
		h.checkNoOverlap()
	})
}

func TestAssignment_ResentWithoutAnswer(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.work = neverEnds; n.dropAssignments = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", `{"params":{"a":1}}`)
		h.advance(2 * time.Second)
		n.do(func() { n.dropAssignments, n.dropAnswers = false, true }) // now the answers get lost
		h.advance(3 * time.Second)
		n.do(func() { n.dropAnswers = false })
		h.advance(10 * time.Second)
		assigned := h.fleet.assignments()
		if len(assigned) < 4 || len(assigned) > 7 {
			t.Errorf("%d assignments were sent", len(assigned))
		}
		for _, o := range assigned {
			first := assigned[0].Assignment
			if o.Job != first.Job || o.N != 1 || o.Fence != first.Fence || o.Epoch != first.Epoch || o.Attempt != 1 || o.Worker != "w1" {
				t.Errorf("sent again as %+v", o)
			}
		}
		if started := n.startedNow(); len(started) != 1 || h.state(id) != job.Active {
			t.Errorf("%d starts, the job is %s", len(started), h.state(id))
		}
	})
}

func TestAssignment_UnansweredIsGivenBack(t *testing.T) {
	runHarness(t, 2, func(h *harness) {
		n1, n2 := h.node("n1"), h.node("n2")
		n1.do(func() { n1.dropAssignments = true })
		n1.offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", anyJob)
		h.until("it is placed", func() bool { return h.state(id) == job.Active })
		n2.offer(job.Overhop, "mail", "w2", 1)
		began := time.Now()
		h.until("it ran elsewhere", func() bool { return h.state(id) == job.Completed })
		if took := time.Since(began); took < assignTimeout || took > assignTimeout+3*time.Second {
			t.Errorf("it took %v", took)
		}
		if a := n2.startedNow()[0]; a.Attempt != 1 || a.N != 2 {
			t.Errorf("dispatch %d, attempt %d", a.N, a.Attempt)
		}
		n1.do(func() {
			if len(n1.recalled) != 1 || n1.recalled[0].N != 1 {
				t.Errorf("recalls %+v", n1.recalled)
			}
		})
	})
}

func TestBodyLost_EndsTheJob(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.refuse = job.BodyLost; n.noFullReports = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		lost := h.enqueue("mail", "", anyJob)
		h.until("it is dead", func() bool { return h.state(lost) == job.Failed })
		n.do(func() { n.refuse = 0 })
		next := h.enqueue("mail", "", anyJob) // the worker's capacity is not lost
		h.until("the next ran", func() bool { return h.state(next) == job.Completed })
	})
}

func TestReport_RepeatIsADuplicate(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.dropAcks = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", anyJob)
		h.until("it is settled", func() bool { return h.state(id) == job.Completed })
		n.do(func() { n.dropAcks = false })
		h.until("the answer came", func() bool {
			answered := false
			n.do(func() { answered = len(n.settled) > 0 })
			return answered
		})
		n.do(func() {
			if s := n.settled[0]; !s.Duplicate || s.Stale || s.State != job.Completed {
				t.Errorf("settled %+v", s)
			}
		})
		if c := h.counts(); c.Delivered != 1 || c.Failed != 0 {
			t.Errorf("counts %+v", c)
		}
	})
}

func TestTenure_AdoptsRunningDispatches(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		n1, n2, n3 := h.node("n1"), h.node("n2"), h.node("n3")
		for _, n := range []*fakeNode{n1, n2, n3} {
			n.do(func() { n.work = worksFor(20 * time.Second) })
			n.offer(job.RRQ, "py", "py/"+n.name, 1)
		}
		var ids []job.ID
		for range 3 {
			ids = append(ids, h.enqueue("mail", "", `{"function":"py#f"}`))
		}
		h.until("they run", func() bool { return h.counts().Notified == 3 })
		epoch := h.fleet.assignments()[0].Epoch
		if err := h.end(); err != nil {
			t.Fatalf("tenure ended with %v", err)
		}
		n2.restart()
		n2.offer(job.RRQ, "py", "py/n2", 1)
		n3.do(func() { n3.silent = true })
		h.begin()
		began := time.Now()
		h.until("the restarted node's is over", func() bool { return h.counts().Notified < 3 })
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		h.advance(4 * time.Second)
		if c := h.counts(); c.Notified != 3 { // n2 runs the one that was given back
			t.Errorf("counts %+v", c)
		}
		again := h.fleet.assignments()[3:]
		for _, o := range again {
			if o.Epoch <= epoch {
				t.Errorf("sent under epoch %d after %d", o.Epoch, epoch)
			}
			if o.N == 1 && o.node != "n1" {
				t.Errorf("dispatch %s was sent again to %s", o.RequestID(), o.node)
			}
		}
		n1.do(func() {
			if len(n1.started) != 1 {
				t.Errorf("n1 started %d", len(n1.started))
			}
		})
		h.until("all ran", func() bool { return h.counts().Delivered == 3 })
		for _, id := range ids {
			if h.state(id) != job.Completed {
				t.Errorf("job %s is %s", id, h.state(id))
			}
		}
		h.checkNoOverlap()
	})
}

// TestTenure_SendsUnsentAssignments checks that the next authority sends the
// assignments of jobs that were placed and not sent.
func TestTenure_SendsUnsentAssignments(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.dropAssignments = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", anyJob)
		h.until("it is placed", func() bool { return h.state(id) == job.Active })
		if err := h.end(); err != nil {
			t.Fatal(err)
		}
		n.do(func() { n.dropAssignments = false })
		h.begin()
		h.until("it ran", func() bool { return h.state(id) == job.Completed })
		if a := n.startedNow()[0]; a.N != 1 || a.Attempt != 1 || a.Body != nil || a.Position.Seq != 1 || a.Worker != "w1" || a.Key != "mail" {
			t.Errorf("sent again as %+v", a)
		}
	})
}

func TestTenure_EndsWhenTheLeaseIsNotRenewed(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.dropAssignments = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		h.enqueue("mail", "", anyJob)
		h.until("it is placed", func() bool { return h.counts().Notified == 1 })
		h.advance(2 * renewInterval)
		n.do(func() { n.dropAssignments = true })
		h.raft.set(func() { h.raft.stuck = true })
		cut := time.Now()
		err := <-h.ended
		if !errors.Is(err, errLeaseLost) {
			t.Errorf("tenure ended with %v", err)
		}
		took := time.Since(cut)
		if took > trustTime || took < trustTime-renewInterval-time.Second {
			t.Errorf("it ended %v after the last commit", took)
		}
		end := time.Now()
		h.advance(5 * time.Second)
		for _, o := range h.fleet.assignments() {
			if o.at.After(cut.Add(trustTime)) || o.at.After(end) {
				t.Errorf("an assignment was sent %v after the last commit", o.at.Sub(cut))
			}
		}
		n.do(func() {
			if n.leaseEnds.After(cut.Add(trustTime)) {
				t.Errorf("the node's lease ends %v after the authority's", n.leaseEnds.Sub(cut)-trustTime)
			}
		})
		if _, _, err := h.sched.Propose(h.ctx, &ledger.AddQueue{Name: "x"}); !errors.Is(err, ErrNotAuthority) {
			t.Errorf("Propose after the tenure returns %v", err)
		}
	})
}

func TestTenure_EndsWhenLeadershipIsLost(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.raft.set(func() { h.raft.lost = true })
		h.enqueue("mail", "", anyJob)
		if err := <-h.ended; !errors.Is(err, errNotLeader) {
			t.Errorf("tenure ended with %v", err)
		}
		h.raft.set(func() { h.raft.lost = false })
		h.begin()
		h.node("n1").offer(job.Overhop, "mail", "w1", 1)
		h.until("the job ran", func() bool { return h.counts().Delivered == 1 })
	})
}

func TestTenure_EndsWhenAnotherLeads(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		h.node("n1").offer(job.Overhop, "mail", "w1", 1)
		wait, err := h.raft.Submit(Proposal{At: time.Now()})
		if err == nil {
			_, err = wait(h.ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		h.raft.set(func() { h.raft.term++ })
		wait, _ = h.raft.Submit(Proposal{At: time.Now(), Commands: []ledger.Command{&ledger.Lead{Owner: "n2", Until: time.Now().Add(leaseTime)}}})
		if _, err := wait(h.ctx); err != nil {
			t.Fatal(err)
		}
		h.enqueue("mail", "", anyJob)
		if err := <-h.ended; !errors.Is(err, ledger.ErrStaleEpoch) {
			t.Errorf("tenure ended with %v", err)
		}
		if n := len(h.fleet.assignments()); n != 0 {
			t.Errorf("%d assignments were sent", n)
		}
	})
}

// TestTenure_SendsNothingAfterItsLease checks that a loop that was blocked
// until after its lease sends no assignments.
func TestTenure_SendsNothingAfterItsLease(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		n := h.node("n1")
		n.do(func() { n.dropAssignments = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		h.enqueue("mail", "", anyJob)
		h.until("it is placed", func() bool { return h.counts().Notified == 1 })
		tenure, before := h.sched.current(), 0
		tenure.loop.post(func() {
			time.Sleep(trustTime + time.Second) // like a stopped process
			before = len(h.fleet.assignments())
			tenure.capacity.nodes["n1"].heartbeatAt = time.Now()
			tenure.sweep() // it would send the assignment again
		})
		if err := <-h.ended; !errors.Is(err, errLeaseLost) {
			t.Errorf("tenure ended with %v", err)
		}
		if more := len(h.fleet.assignments()) - before; more != 0 || before == 0 {
			t.Errorf("%d assignments, then %d more", before, more)
		}
	})
}

// TestTenure_EndsUnderLoad checks that no post to a tenure that ends blocks
// for ever, however many there are: neither a caller's nor one of the tenure's
// own goroutines.
func TestTenure_EndsUnderLoad(t *testing.T) {
	runHarness(t, 1, func(h *harness) {
		tenure, held := h.sched.current(), make(chan struct{})
		tenure.loop.post(func() { <-held })
		for range 20 * inboxSize {
			h.group.Go(func() { tenure.loop.post(func() {}) })
		}
		h.advance(time.Second) // the lanes' readers are blocked in post as well
		h.endTenure()
		close(held)
		if err := <-h.ended; err != nil {
			t.Errorf("tenure ended with %v", err)
		}
	})
}

// TestHeartbeat_ReturnsEdges checks that a node learns with every heartbeat
// the edges of the other available nodes.
func TestHeartbeat_ReturnsEdges(t *testing.T) {
	runHarness(t, 3, func(h *harness) {
		n1, n2, n3 := h.node("n1"), h.node("n2"), h.node("n3")
		published := func(want ...string) {
			t.Helper()
			h.advance(silenceTimeout + 2*time.Second)
			n1.do(func() {
				if !slices.Equal(n1.edges, want) {
					t.Errorf("n1 has the edges %q, want %q", n1.edges, want)
				}
			})
		}
		published()
		n1.do(func() { n1.edge = "n1:1" })
		n2.do(func() { n2.edge = "n2:1" })
		n3.do(func() { n3.edge = "n3:1" })
		published("n2:1", "n3:1")
		n2.do(func() { n2.draining = true })
		published("n3:1")
		n2.do(func() { n2.draining = false; n2.edge = "n2:2" })
		n3.do(func() { n3.silent = true })
		published("n2:2")
		n3.do(func() { n3.silent = false })
		published("n2:2", "n3:1")
	})
}
