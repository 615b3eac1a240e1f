package scheduler

import (
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// inMove runs a test in a yard whose n1 runs a job in a queue with room for
// one. Another job waits for it, and n2 has room.
func inMove(t *testing.T, test func(y *yard, n1, n2 *fakeNode, a job.Assignment)) {
	inYard(t, 2, func(y *yard) {
		n1, n2 := y.node("n1"), y.node("n2")
		y.do(&ledger.AddQueue{ID: job.ID{1}, Name: "mail", Config: job.QueueConfig{Limit: 1}})
		n1.look(func() { n1.work = forever })
		n1.offer(job.Overhop, "mail", "w1", 1)
		id := y.enqueue("mail", "", anyJob)
		y.until("it runs", func() bool { return y.state(id) == job.Active })
		a := n1.startedNow()[0]
		n2.offer(job.Overhop, "mail", "w2", 4)
		test(y, n1, n2, a)
		y.noDoubles()
	})
}

// move commits that the worker of a came back at n2.
func (y *yard) move(a job.Assignment) {
	y.t.Helper()
	if r := y.do(&ledger.MoveDispatch{Job: a.Job, N: a.N, Node: "n2", Incarnation: 1, Channel: "overhop/w2"}); r.Err != nil {
		y.t.Fatal(r.Err)
	}
}

func (n *fakeNode) recalls(why job.RecallReason) (count int) {
	n.look(func() {
		for _, r := range n.recalled {
			if r.Reason == why {
				count++
			}
		}
	})
	return count
}

// The node that a worker has left is told, and cannot end the dispatch by
// losing it. The node it came to can.
func TestMoved_IsLostOnlyWhereItIs(t *testing.T) {
	inMove(t, func(y *yard, n1, n2 *fakeNode, a job.Assignment) {
		n1.look(func() { n1.silent = true }) // so that it hears nothing of the move
		n2.bring(a)
		y.move(a)
		n1.look(func() {
			n1.silent = false
			for _, status := range []job.Status{job.Lost, job.Declined, job.Interrupted} {
				n1.outcomes = append(n1.outcomes, job.Outcome{Job: a.Job, N: a.N, Status: status, Started: true})
			}
		})
		y.pass(15 * time.Second)
		n1.look(func() {
			if len(n1.settled) != 3 || !n1.settled[0].Stale || !n1.settled[1].Stale || !n1.settled[2].Stale {
				t.Errorf("settled at the node it had left: %+v", n1.settled)
			}
		})
		if y.state(a.Job) != job.Active || y.counts().Failed != 0 {
			t.Errorf("the job is %s, %+v", y.state(a.Job), y.counts())
		}
		if n := n1.recalls(job.RecallSuperseded); n == 0 || n > 12 {
			t.Errorf("the node it had left was told %d times", n)
		}
		if n := n2.recalls(job.RecallSuperseded); n != 0 {
			t.Errorf("the node it came to was told %d times to let go", n)
		}
		n2.look(func() {
			for k, r := range n2.running {
				delete(n2.running, k)
				n2.outcomes = append(n2.outcomes, job.Outcome{Job: r.Job, N: r.N, Status: job.Lost, Started: true})
			}
			n2.fleet.count(&a, -1)
		})
		y.until("it ran again", func() bool { return y.state(a.Job) == job.Completed })
	})
}

// The node's answer counts, not that the move was committed; a cancellation
// goes where the dispatch is.
func TestMoved_IsConfirmedByTheNewNode(t *testing.T) {
	inMove(t, func(y *yard, n1, n2 *fakeNode, a job.Assignment) {
		sent := len(y.fleet.orders())
		y.move(a)
		y.pass(2 * time.Second) // n2 does not have it yet
		n2.bring(a)
		y.pass(15 * time.Second)
		orders := y.fleet.orders()[sent:]
		if len(orders) < 2 || len(orders) > 5 {
			t.Errorf("sent again %d times", len(orders))
		}
		for _, o := range orders {
			if o.node != "n2" || o.N != a.N || o.Started.IsZero() || o.Started.After(o.at) {
				t.Errorf("sent to %s: %+v", o.node, o.Assignment)
			}
		}
		if y.state(a.Job) != job.Active {
			t.Fatalf("the job is %s", y.state(a.Job))
		}
		y.do(&ledger.CancelJob{Job: a.Job, Reason: "no more"})
		y.until("it is cancelled", func() bool { return y.state(a.Job) == job.Failed })
		if n1.recalls(job.RecallCancelled) != 0 || n2.recalls(job.RecallCancelled) == 0 {
			t.Error("the recall went to the node it had left")
		}
	})
}

// A worker that never gets as far as its new node has lost its job, once its
// lease is over.
func TestMoved_ThatNobodyBringsIsGivenBack(t *testing.T) {
	inMove(t, func(y *yard, n1, n2 *fakeNode, a job.Assignment) {
		y.move(a)
		began := time.Now()
		n2.look(func() { n2.fleet.count(&a, -1) }) // the worker is gone
		y.until("it ran again", func() bool { return y.state(a.Job) == job.Completed })
		if took := time.Since(began); took < workerLease || took > giveUpAfter+3*time.Second {
			t.Errorf("it took %v", took)
		}
		if view, _ := y.find(a.Job); view.Losses != 1 {
			t.Errorf("%d losses", view.Losses)
		}
	})
}

// What the sweep has to say of the node that a dispatch has just left is not
// the end of it.
func TestMoved_WhileItsNodeIsGivenUp(t *testing.T) {
	inMove(t, func(y *yard, n1, n2 *fakeNode, a job.Assignment) {
		n1.look(func() { n1.silent = true })
		y.pass(reassignAfter - time.Second)
		y.raft.set(func() { y.raft.delay = 2 * time.Second })
		n2.bring(a)
		y.move(a)
		y.raft.set(func() { y.raft.delay = 2 * time.Millisecond })
		y.pass(10 * time.Second)
		if y.state(a.Job) != job.Active || y.counts().Failed != 0 {
			t.Errorf("the job is %s, %+v", y.state(a.Job), y.counts())
		}
		n2.look(func() { n2.silent = true }) // now it is n2 that goes
		n2.look(func() { n2.fleet.count(&a, -1) })
		n1.look(func() { n1.silent = false; clear(n1.running); n1.work = lasting(time.Second) })
		n1.offer(job.Overhop, "mail", "w1", 1)
		y.until("it ran again", func() bool { return y.state(a.Job) == job.Completed })
	})
}

// A node is told which of the moves took the dispatch from it, so that it can
// tell an order that was late from one that holds.
func TestMoved_SaysByWhichEntry(t *testing.T) {
	inMove(t, func(y *yard, n1, n2 *fakeNode, a job.Assignment) {
		moved := func(n *fakeNode) (last uint64) {
			n.look(func() {
				for _, r := range n.recalled {
					if r.Reason == job.RecallSuperseded {
						last = r.Moved
					}
				}
			})
			return last
		}
		back := a
		n2.bring(a)
		y.move(a)
		first := moved(n1)
		n2.look(func() { clear(n2.running) })
		n1.bring(back)
		if r := y.do(&ledger.MoveDispatch{Job: a.Job, N: a.N, Node: "n1", Incarnation: 1, Channel: "overhop/w1"}); r.Err != nil {
			t.Fatal(r.Err)
		}
		second := moved(n2)
		y.move(a)
		y.pass(2 * time.Second)
		if third := moved(n1); first == 0 || second <= first || third <= second {
			t.Errorf("moved by entries %d, %d, %d", first, second, third)
		} else if orders := y.fleet.orders(); orders[len(orders)-1].Moved != third {
			t.Errorf("the last order speaks of entry %d, not %d", orders[len(orders)-1].Moved, third)
		}
		n2.bring(a)
	})
}

// What the former node says of its order, late, is not said of the new one's.
func TestMoved_FormerNodesAnswerIsNotHeard(t *testing.T) {
	for _, answer := range []job.Answer{job.Taken, job.BodyLost} {
		inMove(t, func(y *yard, n1, n2 *fakeNode, a job.Assignment) {
			y.move(a)
			sent := len(y.fleet.orders())
			m := y.sched.tenure()
			m.postAside(func() { m.answered(dispatchKey{a.Job, a.N}, "n1", 1, answer) })
			y.pass(2 * time.Second)
			if y.state(a.Job) != job.Active || len(y.fleet.orders()) == sent {
				t.Errorf("after answer %d the job is %s, %d orders", answer, y.state(a.Job), len(y.fleet.orders())-sent)
			}
		})
	}
}

// A new authority does not know whether the worker has got as far as the node
// that its dispatch was moved to. It must not have it begun there.
func TestMoved_IsNotBegunByTheNextAuthority(t *testing.T) {
	inMove(t, func(y *yard, n1, n2 *fakeNode, a job.Assignment) {
		n2.offer(job.Overhop, "mail", "w2", 4)
		n1.look(func() { n1.silent = true }) // so that it hears nothing of the move
		y.move(a)
		y.end()
		n1.look(func() { n1.silent, n1.recalled = false, nil })
		sent := len(y.fleet.orders())
		y.begin()
		y.pass(3 * time.Second)
		if n1.recalls(job.RecallSuperseded) == 0 || n1.recalled[0].Moved == 0 || n2.recalls(job.RecallSuperseded) != 0 {
			t.Errorf("told to let go: n1 %+v, n2 %+v", n1.recalled, n2.recalled)
		}
		orders := y.fleet.orders()[sent:]
		if len(orders) < 2 {
			t.Errorf("n2 was asked %d times whether it has the dispatch", len(orders))
		}
		for _, o := range orders {
			if o.node != "n2" || o.N != a.N || o.Started.IsZero() {
				t.Errorf("sent to %s: %+v", o.node, o.Assignment)
			}
		}
		if begun := n2.startedNow(); len(begun) > 0 {
			t.Errorf("n2 began %+v", begun)
		}
		n2.bring(a)
		y.pass(15 * time.Second)
		if y.state(a.Job) != job.Active || y.counts().Failed != 0 {
			t.Errorf("the job is %s, %+v", y.state(a.Job), y.counts())
		}
	})
}

// A worker may come to a node that the authority has not heard for long. Its job
// is not given to others before the lease that it brings is over.
func TestMoved_IsNotLostForWhatWasBefore(t *testing.T) {
	inMove(t, func(y *yard, n1, n2 *fakeNode, a job.Assignment) {
		n2.look(func() { n2.silent = true })
		y.pass(2 * reassignAfter)
		y.move(a)
		y.pass(workerLease)
		if view, _ := y.find(a.Job); view.State != job.Active || view.Dispatches != 1 {
			t.Errorf("the job is %s, dispatch %d, while its worker's lease goes on", view.State, view.Dispatches)
		}
		n1.look(func() { n1.fleet.count(&a, -1) }) // the worker found no node: it has stopped
		y.until("it is begun again", func() bool { view, _ := y.find(a.Job); return view.Dispatches == 2 })
	})
}

// A dispatch that is placed anew has not moved, whatever became of the one
// before.
func TestMoved_IsOverWithTheDispatch(t *testing.T) {
	inMove(t, func(y *yard, n1, n2 *fakeNode, a job.Assignment) {
		y.move(a)
		n2.look(func() { n2.fleet.count(&a, -1); n2.work = forever })
		y.until("it runs again", func() bool { view, _ := y.find(a.Job); return view.Dispatches == 2 && view.State == job.Active })
		y.raft.View(func(l *ledger.Ledger) {
			if d, ok := l.Dispatch(a.Job, 2); !ok || d.Moved {
				t.Errorf("the second dispatch: %+v, %t", d, ok)
			}
		})
	})
}

// Whoever has the token may tell the end, wherever it is. The node that has the
// dispatch then lets it go.
func TestMoved_EndsAtTheNodeItLeft(t *testing.T) {
	inMove(t, func(y *yard, n1, n2 *fakeNode, a job.Assignment) {
		n2.bring(a)
		y.move(a)
		n1.look(func() {
			n1.outcomes = append(n1.outcomes, job.Outcome{Job: a.Job, N: a.N, Status: job.Success, Started: true})
		})
		y.until("it has ended", func() bool { return y.state(a.Job) == job.Completed })
		y.pass(time.Second)
		n2.look(func() {
			if len(n2.running) > 0 {
				t.Errorf("n2 runs it still: %v", n2.running)
			}
		})
		if n := n2.recalls(job.RecallSuperseded); n != 1 {
			t.Errorf("n2 was told %d times", n)
		}
		n2.fleet.count(&a, -1)
		if c := y.counts(); c.Delivered != 1 || c.Notified != 0 {
			t.Errorf("%+v", c)
		}
	})
}
