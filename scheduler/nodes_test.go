package scheduler

import (
	"errors"
	"slices"
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

func TestNoRoom_GivesTheAttemptBackAndWaitsForAnOffer(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.offer(job.Overhop, "mail", "w1", 3)
		y.pass(20 * time.Millisecond)
		reports := 0
		n.look(func() { n.refuse = job.NoRoom; n.curt = true; reports = n.reports })
		id := y.enqueue("mail", "", anyJob)
		y.pass(30 * time.Second)
		refused := len(y.fleet.orders())
		// Asked to tell all its room, the node says again that it has some: it
		// is taken at its word, but no more often than it speaks.
		n.look(func() { reports = n.reports - reports })
		if refused < 2 || refused > reports+1 || refused > 40 {
			t.Errorf("%d assignments went to the node that refuses them, after %d reports", refused, reports)
		}
		n.look(func() { n.refuse = 0 })
		y.until("it ran", func() bool { return y.state(id) == job.Completed })
		a := n.startedNow()[0]
		if a.Attempt != 1 || int(a.N) != refused+1 && int(a.N) != refused+2 || !a.Redelivered {
			t.Errorf("dispatch %d, attempt %d, redelivered %v, after %d refusals", a.N, a.Attempt, a.Redelivered, refused)
		}
		view, _ := y.find(id)
		if view.Losses != 0 {
			t.Errorf("%d losses", view.Losses)
		}
	})
}

func TestDraining_NodeGetsNothingUntilItTakesWorkAgain(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		n1, n2 := y.node("n1"), y.node("n2")
		n1.offer(job.Overhop, "mail", "w1", 3)
		y.pass(20 * time.Millisecond)
		n1.look(func() { n1.refuse = job.Draining })
		id := y.enqueue("mail", "", anyJob)
		y.pass(100 * time.Millisecond)
		if n := len(y.fleet.orders()); n != 1 {
			t.Errorf("%d assignments were sent", n)
		}
		n2.offer(job.Overhop, "mail", "w2", 1)
		y.until("the other node ran it", func() bool { return y.state(id) == job.Completed })
		n1.look(func() { n1.refuse = 0 })
		n2.offer(job.Overhop, "mail", "w2", 0)
		again := y.enqueue("mail", "", anyJob)
		y.until("it ran where it was refused before", func() bool { return y.state(again) == job.Completed })
	})
}

func TestSilentNode_ItsJobsRunElsewhere(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		n1, n2 := y.node("n1"), y.node("n2")
		n1.look(func() { n1.work = forever })
		n1.offer(job.Overhop, "mail", "w1", 4)
		n1.offer(job.RRQ, "py", "py/9000", 4)
		ids := []job.ID{y.enqueue("mail", "", anyJob), y.enqueue("mail", "", `{"function":"py#f"}`)}
		y.until("they run", func() bool { return y.counts().Notified == 2 })
		n2.offer(job.Overhop, "mail", "w2", 4)
		n2.offer(job.RRQ, "py", "py/9001", 4)
		n1.look(func() { n1.silent = true })
		cut := time.Now()
		y.pass(3 * time.Second)
		third := y.enqueue("mail", "", anyJob) // not to a node that is silent
		y.until("it ran", func() bool { return y.state(third) == job.Completed })
		y.until("they ran", func() bool { return y.state(ids[0]) == job.Completed && y.state(ids[1]) == job.Completed })
		if took := time.Since(cut); took < reassignAfter-time.Second || took > reassignAfter+500*time.Millisecond {
			t.Errorf("they ran %v after the node fell silent", took)
		}
		for _, a := range n2.startedNow()[1:] {
			if a.N != 2 || a.Attempt != 1 || !a.Redelivered {
				t.Errorf("dispatch %d, attempt %d, redelivered %v", a.N, a.Attempt, a.Redelivered)
			}
		}
		y.noDoubles() // n1 stopped its copies when its lease ended
		n1.look(func() { n1.silent = false })
		y.until("its outcomes are heard", func() bool {
			stale := 0
			n1.look(func() {
				for _, s := range n1.settled {
					if s.Stale {
						stale++
					}
				}
			})
			return stale == 2
		})
		y.raft.View(func(l *ledger.Ledger) {
			if l.Stale() != 2 {
				t.Errorf("%d stale outcomes are counted", l.Stale())
			}
		})
		view, _ := y.find(ids[0])
		if view.Losses != 1 || view.State != job.Completed {
			t.Errorf("%d losses, %s", view.Losses, view.State)
		}
	})
}

func TestRestartedNode_EndsRunnersAtOnceAndWorkersWithTheirLease(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		n1, n2 := y.node("n1"), y.node("n2")
		n1.look(func() { n1.work = forever })
		n1.offer(job.Overhop, "mail", "w1", 4)
		n1.offer(job.RRQ, "py", "py/9000", 4)
		worker, runner := y.enqueue("mail", "", anyJob), y.enqueue("mail", "", `{"function":"py#f"}`)
		y.until("they run", func() bool { return y.counts().Notified == 2 })
		n2.offer(job.Overhop, "mail", "w2", 4)
		n2.offer(job.RRQ, "py", "py/9001", 4)
		n1.restart()
		began := time.Now()
		y.until("the runner's job ran", func() bool { return y.state(runner) == job.Completed })
		if took := time.Since(began); took > 2*sweepEvery {
			t.Errorf("it took %v", took)
		}
		y.until("the worker's job ran", func() bool { return y.state(worker) == job.Completed })
		if took := time.Since(began); took < workerLease || took > workerLease+2*time.Second {
			t.Errorf("it took %v", took)
		}
		y.noDoubles()
	})
}

// A node that is born again while placements on its former life are in flight
// does not get them: the ledger's record names the former life.
func TestRestartedNode_PlacementsInFlightAreTakenBack(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		y.raft.set(func() { y.raft.delay = 50 * time.Millisecond })
		n.offer(job.Overhop, "mail", "w1", 1)
		y.pass(20 * time.Millisecond)
		id := y.enqueue("mail", "", anyJob)
		y.pass(5 * time.Millisecond)
		n.restart()
		n.offer(job.Overhop, "mail", "w1", 1)
		y.until("it ran", func() bool { return y.state(id) == job.Completed })
		for _, a := range n.startedNow() {
			if a.N != 2 {
				t.Errorf("dispatch %d was sent to the new life", a.N)
			}
		}
		y.noDoubles()
	})
}

func TestAssignment_WithoutAnswerIsSentAgain(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.work = forever; n.deaf = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		id := y.enqueue("mail", "", `{"params":{"a":1}}`)
		y.pass(2 * time.Second)
		n.look(func() { n.deaf, n.mute = false, true }) // now the answers get lost
		y.pass(3 * time.Second)
		n.look(func() { n.mute = false })
		y.pass(10 * time.Second)
		orders := y.fleet.orders()
		if len(orders) < 4 || len(orders) > 7 {
			t.Errorf("%d assignments were sent", len(orders))
		}
		for _, o := range orders {
			first := orders[0].Assignment
			if o.Job != first.Job || o.N != 1 || o.Fence != first.Fence || o.Epoch != first.Epoch || o.Attempt != 1 || o.Worker != "w1" {
				t.Errorf("sent again as %+v", o)
			}
		}
		if started := n.startedNow(); len(started) != 1 || y.state(id) != job.Active {
			t.Errorf("%d starts, the job is %s", len(started), y.state(id))
		}
	})
}

func TestAssignment_NeverAnsweredIsGivenBack(t *testing.T) {
	inYard(t, 2, func(y *yard) {
		n1, n2 := y.node("n1"), y.node("n2")
		n1.look(func() { n1.deaf = true })
		n1.offer(job.Overhop, "mail", "w1", 1)
		id := y.enqueue("mail", "", anyJob)
		y.until("it is placed", func() bool { return y.state(id) == job.Active })
		n2.offer(job.Overhop, "mail", "w2", 1)
		began := time.Now()
		y.until("it ran elsewhere", func() bool { return y.state(id) == job.Completed })
		if took := time.Since(began); took < giveUpAfter || took > giveUpAfter+3*time.Second {
			t.Errorf("it took %v", took)
		}
		if a := n2.startedNow()[0]; a.Attempt != 1 || a.N != 2 {
			t.Errorf("dispatch %d, attempt %d", a.N, a.Attempt)
		}
		n1.look(func() {
			if len(n1.recalled) != 1 || n1.recalled[0].N != 1 {
				t.Errorf("recalls %+v", n1.recalled)
			}
		})
	})
}

func TestBodyLost_EndsTheJob(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.refuse = job.BodyLost; n.curt = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		lost := y.enqueue("mail", "", anyJob)
		y.until("it is dead", func() bool { return y.state(lost) == job.Failed })
		n.look(func() { n.refuse = 0 })
		next := y.enqueue("mail", "", anyJob) // the credit is not lost with it
		y.until("the next ran", func() bool { return y.state(next) == job.Completed })
	})
}

func TestReport_RepeatedAfterALostAnswerIsADuplicate(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.deafAck = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		id := y.enqueue("mail", "", anyJob)
		y.until("it is settled", func() bool { return y.state(id) == job.Completed })
		n.look(func() { n.deafAck = false })
		y.until("the answer came", func() bool {
			answered := false
			n.look(func() { answered = len(n.settled) > 0 })
			return answered
		})
		n.look(func() {
			if s := n.settled[0]; !s.Dup || s.Stale || s.State != job.Completed {
				t.Errorf("settled %+v", s)
			}
		})
		if c := y.counts(); c.Delivered != 1 || c.Failed != 0 {
			t.Errorf("counts %+v", c)
		}
	})
}

func TestTenure_NewOneAdoptsWhatRuns(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		n1, n2, n3 := y.node("n1"), y.node("n2"), y.node("n3")
		for _, n := range []*fakeNode{n1, n2, n3} {
			n.look(func() { n.work = lasting(20 * time.Second) })
			n.offer(job.RRQ, "py", "py/"+n.name, 1)
		}
		var ids []job.ID
		for range 3 {
			ids = append(ids, y.enqueue("mail", "", `{"function":"py#f"}`))
		}
		y.until("they run", func() bool { return y.counts().Notified == 3 })
		epoch := y.fleet.orders()[0].Epoch
		if err := y.end(); err != nil {
			t.Fatalf("tenure ended with %v", err)
		}
		n2.restart()
		n2.offer(job.RRQ, "py", "py/n2", 1)
		n3.look(func() { n3.silent = true })
		y.begin()
		began := time.Now()
		y.until("the restarted node's is over", func() bool { return y.counts().Notified < 3 })
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %v", took)
		}
		y.pass(4 * time.Second)
		if c := y.counts(); c.Notified != 3 { // n2 runs the given back one again
			t.Errorf("counts %+v", c)
		}
		again := y.fleet.orders()[3:]
		for _, o := range again {
			if o.Epoch <= epoch {
				t.Errorf("sent under epoch %d after %d", o.Epoch, epoch)
			}
			if o.N == 1 && o.node != "n1" {
				t.Errorf("dispatch %s was sent again to %s", o.RequestID(), o.node)
			}
		}
		n1.look(func() {
			if len(n1.started) != 1 {
				t.Errorf("n1 started %d", len(n1.started))
			}
		})
		y.until("all ran", func() bool { return y.counts().Delivered == 3 })
		for _, id := range ids {
			if y.state(id) != job.Completed {
				t.Errorf("job %s is %s", id, y.state(id))
			}
		}
		y.noDoubles()
	})
}

// Placed, and the authority gone before it could send: the next one does.
func TestTenure_NewOneSendsWhatWasNotSent(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.deaf = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		id := y.enqueue("mail", "", anyJob)
		y.until("it is placed", func() bool { return y.state(id) == job.Active })
		if err := y.end(); err != nil {
			t.Fatal(err)
		}
		n.look(func() { n.deaf = false })
		y.begin()
		y.until("it ran", func() bool { return y.state(id) == job.Completed })
		if a := n.startedNow()[0]; a.N != 1 || a.Attempt != 1 || a.Body != nil || a.Position.Seq != 1 || a.Worker != "w1" || a.Key != "mail" {
			t.Errorf("sent again as %+v", a)
		}
	})
}

func TestTenure_EndsWhenTheLeaseIsNotRenewed(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.deaf = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		y.enqueue("mail", "", anyJob)
		y.until("it is placed", func() bool { return y.counts().Notified == 1 })
		y.pass(2 * renewEvery)
		n.look(func() { n.deaf = true })
		y.raft.set(func() { y.raft.stuck = true })
		cut := time.Now()
		err := <-y.ended
		if !errors.Is(err, errTrustLost) {
			t.Errorf("tenure ended with %v", err)
		}
		took := time.Since(cut)
		if took > trustTime || took < trustTime-renewEvery-time.Second {
			t.Errorf("it ended %v after the last commit", took)
		}
		end := time.Now()
		y.pass(5 * time.Second)
		for _, o := range y.fleet.orders() {
			if o.at.After(cut.Add(trustTime)) || o.at.After(end) {
				t.Errorf("an assignment was sent %v after the last commit", o.at.Sub(cut))
			}
		}
		n.look(func() {
			if n.leaseEnds.After(cut.Add(trustTime)) {
				t.Errorf("the node's lease goes on %v beyond the authority's", n.leaseEnds.Sub(cut)-trustTime)
			}
		})
		if _, _, err := y.sched.Do(y.ctx, &ledger.AddQueue{Name: "x"}); !errors.Is(err, ErrNoTenure) {
			t.Errorf("after it, Do says %v", err)
		}
	})
}

func TestTenure_EndsWhenLeadershipIsLost(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.raft.set(func() { y.raft.lost = true })
		y.enqueue("mail", "", anyJob)
		if err := <-y.ended; !errors.Is(err, errNotLeader) {
			t.Errorf("tenure ended with %v", err)
		}
		y.raft.set(func() { y.raft.lost = false })
		y.begin()
		y.node("n1").offer(job.Overhop, "mail", "w1", 1)
		y.until("the job ran", func() bool { return y.counts().Delivered == 1 })
	})
}

func TestTenure_EndsWhenAnotherLeads(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		y.node("n1").offer(job.Overhop, "mail", "w1", 1)
		wait, err := y.raft.Submit(Proposal{At: time.Now()})
		if err == nil {
			_, err = wait(y.ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
		y.raft.set(func() { y.raft.term++ })
		wait, _ = y.raft.Submit(Proposal{At: time.Now(), Commands: []ledger.Command{&ledger.Lead{Owner: "n2", Until: time.Now().Add(leaseTime)}}})
		if _, err := wait(y.ctx); err != nil {
			t.Fatal(err)
		}
		y.enqueue("mail", "", anyJob)
		if err := <-y.ended; !errors.Is(err, ledger.ErrStaleEpoch) {
			t.Errorf("tenure ended with %v", err)
		}
		if n := len(y.fleet.orders()); n != 0 {
			t.Errorf("%d assignments were sent", n)
		}
	})
}

// A loop that was held up beyond its lease gives no more orders.
func TestTenure_GivesNoOrdersBeyondItsLease(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		n := y.node("n1")
		n.look(func() { n.deaf = true })
		n.offer(job.Overhop, "mail", "w1", 1)
		y.enqueue("mail", "", anyJob)
		y.until("it is placed", func() bool { return y.counts().Notified == 1 })
		m, before := y.sched.tenure(), 0
		m.post(func() {
			time.Sleep(trustTime + time.Second) // as a stopped process
			before = len(y.fleet.orders())
			m.nodes["n1"].beatAt = time.Now()
			m.sweep() // it would send the assignment again
		})
		if err := <-y.ended; !errors.Is(err, errTrustLost) {
			t.Errorf("tenure ended with %v", err)
		}
		if more := len(y.fleet.orders()) - before; more != 0 || before == 0 {
			t.Errorf("%d orders, then %d more", before, more)
		}
	})
}

// Whoever posts to a tenure that ends is let go, however much is posted: the
// tenure's own loops too, which would hold it up for ever.
func TestTenure_EndsUnderAFloodOfPosts(t *testing.T) {
	inYard(t, 1, func(y *yard) {
		m, held := y.sched.tenure(), make(chan struct{})
		m.post(func() { <-held })
		for range 20 * inboxSize {
			y.group.Go(func() { m.post(func() {}) })
		}
		y.pass(time.Second) // the readers of the lanes wait in line too
		y.endTenure()
		close(held)
		if err := <-y.ended; err != nil {
			t.Errorf("tenure ended with %v", err)
		}
	})
}

// A node hears with every beat where the others' clients connect, as long as
// these take work.
func TestBeat_TellsEdges(t *testing.T) {
	inYard(t, 3, func(y *yard) {
		n1, n2, n3 := y.node("n1"), y.node("n2"), y.node("n3")
		told := func(want ...string) {
			t.Helper()
			y.pass(silentAfter + 2*time.Second)
			n1.look(func() {
				if !slices.Equal(n1.edges, want) {
					t.Errorf("n1 hears of %q, want %q", n1.edges, want)
				}
			})
		}
		told()
		n1.look(func() { n1.edge = "n1:1" })
		n2.look(func() { n2.edge = "n2:1" })
		n3.look(func() { n3.edge = "n3:1" })
		told("n2:1", "n3:1")
		n2.look(func() { n2.draining = true })
		told("n3:1")
		n2.look(func() { n2.draining = false; n2.edge = "n2:2" })
		n3.look(func() { n3.silent = true })
		told("n2:2")
		n3.look(func() { n3.silent = false })
		told("n2:2", "n3:1")
	})
}
