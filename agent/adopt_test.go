package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// movedAssignment returns an assignment of a dispatch that a worker has brought from
// another node.
func movedAssignment(i byte) job.Assignment {
	o := assignment(i)
	o.Body, o.Started = nil, time.Now().Add(-time.Second)
	return o
}

// TestAdopt_TracksDispatch checks that an adopted dispatch is counted, confirmed,
// recalled and reported like one that was started here.
func TestAdopt_TracksDispatch(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		wantEqual(t, "asked for before it came", b.Assign(batch(1, movedAssignment(1))), []job.Answer{job.NoCapacity})
		wantEqual(t, "adopted", b.Adopt(movedAssignment(1)), true)
		wantEqual(t, "adopted again", b.Adopt(movedAssignment(1)), true)
		wantEqual(t, "running", b.Running(), 1)
		wantEqual(t, "asked for", b.Assign(batch(2, movedAssignment(1))), []job.Answer{job.Taken})
		b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: job.RecallCancelled})
		wantEqual(t, "adopted while it ends", b.Adopt(movedAssignment(1)), false)
		started, stopped := b.target.seen()
		wantEqual(t, "started", started, []string(nil))
		wantEqual(t, "stopped", stopped, []string{requestID(1) + " CANCELLED"})
		b.finish(1)
		synctest.Wait()
		wantEqual(t, "running after its end", b.Running(), 0)
		wantEqual(t, "asked for after its end", b.Assign(batch(3, movedAssignment(1))), []job.Answer{job.NoCapacity})
		if b.transport.loads != 0 || len(b.transport.outcomes()) != 1 {
			t.Errorf("%d bodies were loaded, outcomes %+v", b.transport.loads, b.transport.outcomes())
		}
	})
}

// TestAdopt_AfterEarlierLoss checks the case that a dispatch comes back to a node whose
// report of its loss is not settled: the node does not answer that it has the dispatch,
// and each report names the move that it follows.
func TestAdopt_AfterEarlierLoss(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.Assign(batch(1, assignment(1)))
		b.transport.set(func() { b.transport.down = true })
		lost := job.Outcome{Job: job.ID{1}, N: 1, Status: job.Lost, Started: true}
		b.Report(lost, nil)
		back := movedAssignment(1)
		back.MoveIndex = 20
		wantEqual(t, "asked for", b.Assign(batch(2, back)), []job.Answer{job.NoCapacity})
		b.transport.set(func() { b.transport.down = false })
		advance(2 * time.Second)
		wantEqual(t, "adopted once the loss is settled", b.Adopt(back), true)
		b.Report(lost, nil)
		advance(2 * time.Second)
		got := b.transport.outcomes()
		if len(got) < 2 || got[0].MoveIndex != 0 || got[len(got)-1].MoveIndex != 20 { // the first may have been sent twice
			t.Errorf("outcomes %+v, want the first of the first stay and the last of that since entry 20", got)
		}
	})
}

func TestAdopt_StopsWithTheLease(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.target.onStop = func(id job.ID, n uint32, _ job.RecallReason) {
			b.Report(job.Outcome{Job: id, N: n, Status: job.Lost, Started: true}, nil)
		}
		wantEqual(t, "adopted", b.Adopt(movedAssignment(1)), true)
		b.transport.set(func() { b.transport.down = true })
		advance(7 * time.Second)
		_, stopped := b.target.seen()
		wantEqual(t, "stopped", stopped, []string{requestID(1) + " LEASE_EXPIRED"})
		wantEqual(t, "adopted without a lease", b.Adopt(movedAssignment(2)), false)
		wantEqual(t, "running", b.Running(), 0)
		b.transport.set(func() { b.transport.down = false })
		advance(2 * time.Second)
		wantEqual(t, "adopted under a new lease", b.Adopt(movedAssignment(2)), true)
		b.finish(2)
	})
}

func TestAdopt_DrainWaits(t *testing.T) {
	inBubble(t, Config{DrainTimeout: 8 * time.Second}, func(t *testing.T, b *harness) {
		b.Adopt(movedAssignment(1))
		b.stop()
		advance(3 * time.Second)
		select {
		case <-b.done:
			t.Error("drained while a job ran")
		default:
		}
		wantEqual(t, "asked for while draining", b.Assign(batch(1, movedAssignment(1), assignment(2))), []job.Answer{job.Taken, job.Draining})
		b.finish(1)
		synctest.Wait()
		select {
		case err := <-b.done:
			b.done <- err
		default:
			t.Error("still draining after the job's end")
		}
	})
}

// TestRecall_SupersededReportsNoOutcome checks that a dispatch which has moved
// away yields no outcome, whatever recall came before, and that it may come
// back.
func TestRecall_SupersededReportsNoOutcome(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.Assign(batch(1, assignment(1)))
		for _, reason := range []job.RecallReason{job.RecallCancelled, job.RecallSuperseded, job.RecallSuperseded} {
			b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: reason})
		}
		_, stopped := b.target.seen()
		wantEqual(t, "stopped", stopped, []string{requestID(1) + " CANCELLED", requestID(1) + " SUPERSEDED"})
		wantEqual(t, "running", b.Running(), 0)
		wantEqual(t, "a late assignment", b.Assign(batch(2, assignment(1))), []job.Answer{job.Taken})
		wantEqual(t, "running after that", b.Running(), 0)
		wantEqual(t, "it comes back", b.Adopt(movedAssignment(1)), true)
		wantEqual(t, "running again", b.Running(), 1)
		b.finish(1)
		synctest.Wait()
		if got := b.transport.outcomes(); len(got) != 1 || got[0].Status != job.Success {
			t.Errorf("outcomes %+v", got)
		}
	})
}

// TestRecall_IgnoresEarlierMove checks that a recall because of an earlier
// move is ignored after the dispatch has come back, and that other recalls are
// not.
func TestRecall_IgnoresEarlierMove(t *testing.T) {
	for _, c := range []struct {
		held, moved uint64 // index of the adoption's move; of the recall's
		stays       bool
	}{
		{held: 20, moved: 10, stays: true}, {held: 20, moved: 20, stays: true},
		{held: 20, moved: 30}, {held: 20, moved: 0}, {held: 0, moved: 10},
	} {
		for _, held := range []bool{false, true} { // whether the node has the dispatch already when it comes back
			inBubble(t, Config{}, func(t *testing.T, b *harness) {
				if held {
					b.Assign(batch(1, assignment(1)))
				}
				if back := movedAssignment(1); c.held > 0 || !held {
					back.MoveIndex = c.held
					wantEqual(t, "it comes back", b.Adopt(back), true)
				}
				b.Recall(job.Recall{Job: job.ID{1}, N: 1, Epoch: 5, Reason: job.RecallSuperseded, MoveIndex: c.moved})
				if stays := b.Running() == 1; stays != c.stays {
					t.Errorf("adopted by entry %d, live before: %t, recalled by entry %d: stays %t", c.held, held, c.moved, stays)
				}
				if c.stays {
					b.finish(1)
				}
			})
		}
	}
}

// TestLease_ExpiresWithinABatch checks that the rest of a batch is refused
// when the lease expires while the batch is handled.
func TestLease_ExpiresWithinABatch(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		b.transport.set(func() { b.transport.down = true })
		advance(5 * time.Second)
		b.target.onStart = func(job.Assignment) { time.Sleep(2 * time.Second) }
		wantEqual(t, "answers", b.Assign(batch(1, assignment(1), assignment(2))), []job.Answer{job.Taken, job.NoCapacity})
		synctest.Wait()
		started, stopped := b.target.seen()
		wantEqual(t, "started", started, []string{requestID(1) + " send"})
		wantEqual(t, "stopped", stopped, []string{requestID(1) + " LEASE_EXPIRED"})
		b.finish(1)
		b.transport.set(func() { b.transport.down = false })
	})
}

// TestLease_ExpiresDuringLoad checks that nothing is started if the lease
// expires while the body is loaded.
func TestLease_ExpiresDuringLoad(t *testing.T) {
	inBubble(t, Config{heartbeatInterval: 4 * time.Second}, func(t *testing.T, b *harness) {
		o := assignment(1)
		o.Body, o.Position = nil, job.Position{Lane: 1, Seq: 7}
		b.transport.set(func() {
			b.transport.down = true
			b.transport.bodies[o.Position] = []byte(body)
			b.transport.onLoad = func() {
				// The lease expires before watchLease checks it.
				b.mu.Lock()
				b.lease.until = time.Now()
				b.mu.Unlock()
			}
		})
		wantEqual(t, "answers", b.Assign(batch(1, o)), []job.Answer{job.Taken})
		synctest.Wait()
		started, _ := b.target.seen()
		wantEqual(t, "started", started, []string(nil))
		b.transport.set(func() { b.transport.down = false })
		advance(6 * time.Second)
		if got := b.transport.outcomes(); len(got) == 0 || got[len(got)-1].Status != job.Declined {
			t.Errorf("outcomes %+v", got)
		}
	})
}

// TestRecall_PassesMoveIndex checks that the target learns the index of a
// recall's move, and that a recall because of an earlier move does not reach
// it.
func TestRecall_PassesMoveIndex(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		o := movedAssignment(1)
		o.MoveIndex = 26
		wantEqual(t, "adopted", b.Adopt(o), true)
		b.Recall(job.Recall{Job: o.Job, N: o.N, Epoch: 5, Reason: job.RecallSuperseded, MoveIndex: 25})
		wantEqual(t, "running after the late recall", b.Running(), 1)
		b.Recall(job.Recall{Job: o.Job, N: o.N, Epoch: 5, Reason: job.RecallSuperseded, MoveIndex: 27})
		wantEqual(t, "running after the next move", b.Running(), 0)
		_, stopped := b.target.seen()
		wantEqual(t, "stopped", stopped, []string{requestID(1) + " SUPERSEDED"})
		wantEqual(t, "by entry", b.target.lastMoveIndex, uint64(27))
	})
}

// TestWorkerLease checks that a worker's lease ends with the node's at the
// latest.
func TestWorkerLease(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		short, long := time.Now().Add(time.Second), time.Now().Add(time.Hour)
		wantEqual(t, "a short lease", b.WorkerLease(short), short)
		wantEqual(t, "a long lease", b.WorkerLease(long), b.Lease())
	})
}

// TestHeartbeat_ListsDispatches checks that heartbeats list a dispatch until
// it is settled.
func TestHeartbeat_ListsDispatches(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, b *harness) {
		last := func() (beat job.Heartbeat) {
			advance(1100 * time.Millisecond)
			b.transport.set(func() { beat = b.transport.heartbeats[len(b.transport.heartbeats)-1] })
			return beat
		}
		b.transport.set(func() { b.transport.ackSeq = 7 })
		last()
		b.Assign(batch(7, assignment(1)))
		beat := last()
		wantEqual(t, "ack seq", beat.AckSeq, uint64(7))
		wantEqual(t, "of epoch", beat.Epoch, uint64(5))
		wantEqual(t, "listed", beat.Dispatches, []job.DispatchID{{Job: job.ID{1}, N: 1}})
		hold := make(chan struct{})
		b.transport.set(func() { b.transport.holdReports = hold })
		b.finish(1)
		wantEqual(t, "listed until it is settled", last().Dispatches, []job.DispatchID{{Job: job.ID{1}, N: 1}})
		b.transport.set(func() { b.transport.holdReports = nil })
		close(hold)
		advance(2 * time.Second)
		wantEqual(t, "listed afterwards", len(last().Dispatches), 0)
	})
}
