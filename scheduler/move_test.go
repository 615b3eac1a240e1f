package scheduler

import (
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// runMove runs a test in a cluster where n1 runs a job of a queue with a limit of one.
// Another job of the queue waits, and n2 has free capacity.
func runMove(t *testing.T, test func(h *harness, n1, n2 *fakeNode, a job.Assignment)) {
	runHarness(t, 2, func(h *harness) {
		n1, n2 := h.node("n1"), h.node("n2")
		h.propose(&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{Limit: 1}})
		n1.do(func() { n1.work = neverEnds })
		n1.offer(job.Overhop, "mail", "w1", 1)
		id := h.enqueue("mail", "", anyJob)
		h.until("it runs", func() bool { return h.state(id) == job.Active })
		a := n1.startedNow()[0]
		n2.offer(job.Overhop, "mail", "w2", 4)
		test(h, n1, n2, a)
		h.checkNoOverlap()
	})
}

// move commits that the worker of a has resumed it at n2.
func (h *harness) move(a job.Assignment) {
	h.t.Helper()
	if r := h.propose(&ledger.MoveDispatch{Job: a.Job, N: a.N, Node: "n2", Incarnation: 1, Channel: "overhop/w2"}); r.Err != nil {
		h.t.Fatal(r.Err)
	}
}

func (n *fakeNode) recalls(reason job.RecallReason) (count int) {
	n.do(func() {
		for _, r := range n.recalled {
			if r.Reason == reason {
				count++
			}
		}
	})
	return count
}

// TestMove_LostOnlyAtCurrentNode checks that the node which a dispatch has
// left is sent a recall and cannot end the dispatch by reporting it lost, or
// ended without its worker's word, and that the new node can.
func TestMove_LostOnlyAtCurrentNode(t *testing.T) {
	runMove(t, func(h *harness, n1, n2 *fakeNode, a job.Assignment) {
		n1.do(func() { n1.silent = true }) // it receives no recall because of the move
		n2.moveHere(a)
		h.move(a)
		n1.do(func() {
			n1.silent = false
			for _, status := range []job.Status{job.Lost, job.Declined, job.Interrupted} {
				n1.outcomes = append(n1.outcomes, job.Outcome{Job: a.Job, N: a.N, Status: status, Started: true})
			}
			for _, status := range []job.Status{job.TimedOut, job.RunCancelled} {
				n1.outcomes = append(n1.outcomes, job.Outcome{Job: a.Job, N: a.N, Status: status, Started: true, ByNode: true})
			}
		})
		h.advance(15 * time.Second)
		n1.do(func() {
			if len(n1.settled) != 5 {
				t.Errorf("%d outcomes are settled at the previous node", len(n1.settled))
			}
			for i, s := range n1.settled {
				if !s.Stale {
					t.Errorf("outcome %d is settled at the previous node: %+v", i, s)
				}
			}
		})
		if h.state(a.Job) != job.Active || h.counts().Failed != 0 {
			t.Errorf("the job is %s, %+v", h.state(a.Job), h.counts())
		}
		if n := n1.recalls(job.RecallSuperseded); n == 0 || n > 12 {
			t.Errorf("the previous node got %d recalls", n)
		}
		if n := n2.recalls(job.RecallSuperseded); n != 0 {
			t.Errorf("the new node got %d recalls", n)
		}
		n2.do(func() {
			for k, r := range n2.running {
				delete(n2.running, k)
				n2.outcomes = append(n2.outcomes, job.Outcome{Job: r.Job, N: r.N, Status: job.Lost, Started: true, MoveIndex: 1 << 32})
			}
			n2.fleet.count(&a, -1)
		})
		h.until("it ran again", func() bool { return h.state(a.Job) == job.Completed })
	})
}

// TestMove_ConfirmedByNewNode checks that the new node has to confirm the
// dispatch after the commit of the move, and that a cancellation goes to that
// node.
func TestMove_ConfirmedByNewNode(t *testing.T) {
	runMove(t, func(h *harness, n1, n2 *fakeNode, a job.Assignment) {
		sent := len(h.fleet.assignments())
		h.move(a)
		h.advance(2 * time.Second) // n2 does not have it yet
		n2.moveHere(a)
		h.advance(15 * time.Second)
		assigned := h.fleet.assignments()[sent:]
		if len(assigned) < 2 || len(assigned) > 5 {
			t.Errorf("sent again %d times", len(assigned))
		}
		for _, o := range assigned {
			if o.node != "n2" || o.N != a.N || o.Started.IsZero() || o.Started.After(o.at) {
				t.Errorf("sent to %s: %+v", o.node, o.Assignment)
			}
		}
		if h.state(a.Job) != job.Active {
			t.Fatalf("the job is %s", h.state(a.Job))
		}
		h.propose(&ledger.CancelJob{Job: a.Job, Reason: "no more"})
		h.until("it is cancelled", func() bool { return h.state(a.Job) == job.Cancelled })
		if n1.recalls(job.RecallCancelled) != 0 || n2.recalls(job.RecallCancelled) == 0 {
			t.Error("the recall went to the previous node")
		}
	})
}

// TestMove_UnconfirmedIsGivenBack checks that a dispatch whose worker never
// reaches the new node is lost once the worker's lease has expired.
func TestMove_UnconfirmedIsGivenBack(t *testing.T) {
	runMove(t, func(h *harness, n1, n2 *fakeNode, a job.Assignment) {
		h.move(a)
		began := time.Now()
		n2.do(func() { n2.fleet.count(&a, -1) }) // the worker is gone
		h.until("it ran again", func() bool { return h.state(a.Job) == job.Completed })
		if took := time.Since(began); took < workerLease || took > assignTimeout+3*time.Second {
			t.Errorf("it took %v", took)
		}
		if view, _ := h.find(a.Job); view.Losses != 1 {
			t.Errorf("%d losses", view.Losses)
		}
	})
}

// TestMove_WhileNodeTimesOut checks that a dispatch which has just moved is
// not ended by the timeout of the node that it left.
func TestMove_WhileNodeTimesOut(t *testing.T) {
	runMove(t, func(h *harness, n1, n2 *fakeNode, a job.Assignment) {
		n1.do(func() { n1.silent = true })
		h.advance(reassignAfter - time.Second)
		h.raft.set(func() { h.raft.delay = 2 * time.Second })
		n2.moveHere(a)
		h.move(a)
		h.raft.set(func() { h.raft.delay = 2 * time.Millisecond })
		h.advance(10 * time.Second)
		if h.state(a.Job) != job.Active || h.counts().Failed != 0 {
			t.Errorf("the job is %s, %+v", h.state(a.Job), h.counts())
		}
		n2.do(func() { n2.silent = true }) // now n2 is silent
		n2.do(func() { n2.fleet.count(&a, -1) })
		n1.do(func() { n1.silent = false; clear(n1.running); n1.work = worksFor(time.Second) })
		n1.offer(job.Overhop, "mail", "w1", 1)
		h.until("it ran again", func() bool { return h.state(a.Job) == job.Completed })
	})
}

// TestMove_IgnoresEarlierStay checks that a loss of which a node reports after the
// dispatch has come back to it counts only if it is of the present stay.
func TestMove_IgnoresEarlierStay(t *testing.T) {
	runMove(t, func(h *harness, n1, n2 *fakeNode, a job.Assignment) {
		n1.do(func() { n1.silent = true })
		n2.moveHere(a)
		h.move(a)
		n2.do(func() { clear(n2.running) })
		if r := h.propose(&ledger.MoveDispatch{Job: a.Job, N: a.N, Node: "n1", Incarnation: 1, Channel: "overhop/w1"}); r.Err != nil {
			t.Fatal(r.Err)
		}
		var back uint64
		h.raft.View(func(l *ledger.Ledger) { back = l.Index() })
		report := func(moveIndex uint64) {
			n1.do(func() {
				n1.silent = false
				n1.outcomes = append(n1.outcomes, job.Outcome{Job: a.Job, N: a.N, Status: job.Lost, Started: true, MoveIndex: moveIndex})
			})
			h.advance(time.Second)
		}
		for _, earlier := range []uint64{0, back - 1} {
			if report(earlier); h.state(a.Job) != job.Active {
				t.Fatalf("a loss before entry %d, of a stay since entry %d, ended the job", back, earlier)
			}
		}
		n1.do(func() {
			clear(n1.running)
			n1.fleet.count(&a, -1)
		})
		if report(back); h.state(a.Job) == job.Active {
			t.Error("a loss of the present stay did not count")
		}
	})
}

// TestMove_CarriesEntryIndex checks that recalls and assignments name the move
// that they belong to, so that a node can tell late ones from current ones.
func TestMove_CarriesEntryIndex(t *testing.T) {
	runMove(t, func(h *harness, n1, n2 *fakeNode, a job.Assignment) {
		moved := func(n *fakeNode) (last uint64) {
			n.do(func() {
				for _, r := range n.recalled {
					if r.Reason == job.RecallSuperseded {
						last = r.MoveIndex
					}
				}
			})
			return last
		}
		back := a
		n2.moveHere(a)
		h.move(a)
		first := moved(n1)
		n2.do(func() { clear(n2.running) })
		n1.moveHere(back)
		if r := h.propose(&ledger.MoveDispatch{Job: a.Job, N: a.N, Node: "n1", Incarnation: 1, Channel: "overhop/w1"}); r.Err != nil {
			t.Fatal(r.Err)
		}
		second := moved(n2)
		h.move(a)
		h.advance(2 * time.Second)
		if third := moved(n1); first == 0 || second <= first || third <= second {
			t.Errorf("moved by entries %d, %d, %d", first, second, third)
		} else if assigned := h.fleet.assignments(); assigned[len(assigned)-1].MoveIndex != third {
			t.Errorf("the last assignment names entry %d, want %d", assigned[len(assigned)-1].MoveIndex, third)
		}
		n2.moveHere(a)
	})
}

// TestMove_IgnoresPreviousNodesAnswer checks that a late answer of the
// previous node does not count for the new one.
func TestMove_IgnoresPreviousNodesAnswer(t *testing.T) {
	for _, answer := range []job.Answer{job.Taken, job.BodyLost} {
		runMove(t, func(h *harness, n1, n2 *fakeNode, a job.Assignment) {
			h.move(a)
			sent := len(h.fleet.assignments())
			tenure := h.sched.current()
			tenure.loop.postReply(func() { tenure.dispatches.handleAnswer(a.DispatchID(), "n1", 1, answer) })
			h.advance(2 * time.Second)
			if h.state(a.Job) != job.Active || len(h.fleet.assignments()) == sent {
				t.Errorf("after answer %d the job is %s, %d assignments", answer, h.state(a.Job), len(h.fleet.assignments())-sent)
			}
		})
	}
}

// TestMove_NotRestartedByNextAuthority checks that a new authority, which does
// not know whether the worker has reached the node that its dispatch moved to,
// does not have the dispatch started there.
func TestMove_NotRestartedByNextAuthority(t *testing.T) {
	runMove(t, func(h *harness, n1, n2 *fakeNode, a job.Assignment) {
		n2.offer(job.Overhop, "mail", "w2", 4)
		n1.do(func() { n1.silent = true }) // it receives no recall because of the move
		h.move(a)
		h.end()
		n1.do(func() { n1.silent, n1.recalled = false, nil })
		sent := len(h.fleet.assignments())
		h.begin()
		h.advance(3 * time.Second)
		if n1.recalls(job.RecallSuperseded) == 0 || n1.recalled[0].MoveIndex == 0 || n2.recalls(job.RecallSuperseded) != 0 {
			t.Errorf("recalls: n1 %+v, n2 %+v", n1.recalled, n2.recalled)
		}
		assigned := h.fleet.assignments()[sent:]
		if len(assigned) < 2 {
			t.Errorf("n2 got the assignment %d times", len(assigned))
		}
		for _, o := range assigned {
			if o.node != "n2" || o.N != a.N || o.Started.IsZero() {
				t.Errorf("sent to %s: %+v", o.node, o.Assignment)
			}
		}
		if begun := n2.startedNow(); len(begun) > 0 {
			t.Errorf("n2 started %+v", begun)
		}
		n2.moveHere(a)
		h.advance(15 * time.Second)
		if h.state(a.Job) != job.Active || h.counts().Failed != 0 {
			t.Errorf("the job is %s, %+v", h.state(a.Job), h.counts())
		}
	})
}

// TestMove_NotLostForEarlierSilence checks that a job whose worker resumes it
// at a node that was silent for long is not placed elsewhere before the
// worker's lease has expired.
func TestMove_NotLostForEarlierSilence(t *testing.T) {
	runMove(t, func(h *harness, n1, n2 *fakeNode, a job.Assignment) {
		n2.do(func() { n2.silent = true })
		h.advance(2 * reassignAfter)
		h.move(a)
		h.advance(workerLease)
		if view, _ := h.find(a.Job); view.State != job.Active || view.Dispatches != 1 {
			t.Errorf("the job is %s, dispatch %d, before its worker's lease has expired", view.State, view.Dispatches)
		}
		n1.do(func() { n1.fleet.count(&a, -1) }) // the worker has found no node and stopped
		h.until("it is begun again", func() bool { view, _ := h.find(a.Job); return view.Dispatches == 2 })
	})
}

// TestMove_EndsWithTheDispatch checks that a new dispatch of a job does not
// count as moved if the previous one had moved.
func TestMove_EndsWithTheDispatch(t *testing.T) {
	runMove(t, func(h *harness, n1, n2 *fakeNode, a job.Assignment) {
		h.move(a)
		n2.do(func() { n2.fleet.count(&a, -1); n2.work = neverEnds })
		h.until("it runs again", func() bool { view, _ := h.find(a.Job); return view.Dispatches == 2 && view.State == job.Active })
		h.raft.View(func(l *ledger.Ledger) {
			if d, ok := l.Dispatch(a.Job, 2); !ok || d.Moved {
				t.Errorf("the second dispatch: %+v, %t", d, ok)
			}
		})
	})
}

// TestMove_EndsAtPreviousNode checks that a worker may report its outcome at
// any node, and that the node which has the dispatch then drops it.
func TestMove_EndsAtPreviousNode(t *testing.T) {
	runMove(t, func(h *harness, n1, n2 *fakeNode, a job.Assignment) {
		n2.moveHere(a)
		h.move(a)
		n1.do(func() {
			n1.outcomes = append(n1.outcomes, job.Outcome{Job: a.Job, N: a.N, Status: job.Success, Started: true})
		})
		h.until("it has ended", func() bool { return h.state(a.Job) == job.Completed })
		h.advance(time.Second)
		n2.do(func() {
			if len(n2.running) > 0 {
				t.Errorf("n2 still runs it: %v", n2.running)
			}
		})
		if n := n2.recalls(job.RecallSuperseded); n != 1 {
			t.Errorf("n2 got %d recalls", n)
		}
		n2.fleet.count(&a, -1)
		if c := h.counts(); c.Delivered != 1 || c.Notified != 0 {
			t.Errorf("%+v", c)
		}
	})
}
