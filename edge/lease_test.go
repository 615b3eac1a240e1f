package edge

import (
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// leaseOf returns the time under key.
func leaseOf(t *testing.T, p overhop.Raw, key string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, str(p.Get(key)))
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return at
}

// A worker's lease never ends after the node's own: not in the QUEST, when it
// is extended, or when the worker resumes a job from another node.
func TestLease_EndsWithTheNodes(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		end := time.Now().Add(3500 * time.Millisecond)
		r.executor.setLease(end)
		within := func(what string, until time.Time) {
			t.Helper()
			if until.After(end) {
				t.Errorf("%s: the lease ends %s after the node's", what, until.Sub(end))
			}
			if left := end.Sub(until); left > time.Millisecond { // the wire has milliseconds
				t.Errorf("%s: the lease ends %s before the node's", what, left)
			}
		}
		q := r.startJob(p, 1, nil)
		within("QUEST", leaseOf(t, q, "lease_until"))
		if ms, _ := q.Get("lease_ms").Int(); ms != 3500 {
			t.Errorf("QUEST: lease_ms is %d, want the 3500 that are left", ms)
		}
		within("ACK", leaseOf(t, p.ask(overhop.TAck, leaseFields(q), overhop.TOK), "lease_until"))
		time.Sleep(3 * time.Second)
		within("BEAT", leaseOf(t, p.ask(overhop.TBeat, leaseFields(q), overhop.TOK), "lease_until"))

		r.cluster.resume = func(_ job.ID, n uint32, _ string) (job.Assignment, error) { return assignment(p, n), nil }
		tok := r.server.deliveries.tokens.mint(job.DispatchID{Job: someJobID, N: 7})
		moved := fields{"jid": someJob, "tok": tok[:]}
		within("resumed", leaseOf(t, p.ask(overhop.TBeat, moved, overhop.TOK), "lease_until"))

		end = end.Add(3 * time.Second) // the node's next beat was answered
		r.executor.setLease(end)
		within("renewed", leaseOf(t, p.ask(overhop.TBeat, leaseFields(q), overhop.TOK), "lease_until"))
	})
}

// A worker whose lease was shortened by the node's own is not lost when that
// lease ends: the node's has been renewed, and the next BEAT extends both.
func TestLease_ShortAndRenewed(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		r.executor.setLease(time.Now().Add(500 * time.Millisecond))
		q := r.startJob(p, 1, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		r.executor.setLease(time.Now().Add(6 * time.Second))
		time.Sleep(2 * time.Second)
		p.ask(overhop.TBeat, leaseFields(q), overhop.TOK)
		if got := r.executor.takeOutcomes(); len(got) != 0 {
			t.Errorf("ended as %+v", got)
		}
	})
}

// A recalled job whose worker has not received the recall ends only with the
// worker's lease: until then it may be running.
func TestRecall_WaitsForTheLease(t *testing.T) {
	for _, reason := range []job.RecallReason{job.RecallCancelled, job.RecallQueueGone, job.RecallShutdown} {
		bubble(t, Config{}, func(r *harness) {
			p, _ := r.startWorker(3)
			q := r.startJob(p, 1, nil)
			p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
			p.nc.Close()
			time.Sleep(time.Second)
			r.server.Stop(job.Recall{Job: someJobID, N: 1, Reason: reason})
			time.Sleep(5*time.Second - time.Millisecond)
			if got := r.executor.takeOutcomes(); len(got) != 0 {
				t.Errorf("%s: ended as %s under a lease", reason, got[0].Status)
			}
			time.Sleep(2 * time.Millisecond)
			r.executor.onlyOutcome(t)
		})
	}
}

// A worker that has lost its connection ends a recalled job by reporting over
// another one.
func TestRecall_ConfirmedOverAnotherConnection(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		q := r.startJob(p, 1, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		p.nc.Close()
		r.server.Stop(job.Recall{Job: someJobID, N: 1, Reason: job.RecallCancelled})
		time.Sleep(time.Second)
		again := r.register(true)
		again.ask(overhop.TFail, leaseFieldsWith(q, fields{"error": fields{"message": "stopped", "type": "cancelled"}}), overhop.TOK)
		if o := r.executor.onlyOutcome(t); o.Status != job.RunCancelled {
			t.Errorf("outcome is %+v", o)
		}
	})
}

// A node that stops reports nothing for a worker with a valid lease: the worker
// may be reconnecting to another node.
func TestClose_LeavesWhatHasALease(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		q := r.startJob(p, 1, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		r.startJob(p, 2, nil)
		r.stop()
		for _, o := range r.executor.takeOutcomes() {
			if o.N == 1 {
				t.Errorf("reported %+v, whose worker has a lease", o)
			}
		}
	})
}

// A recall of a dispatch from before it moved away and back does not stop it.
func TestStop_OfAnEarlierStay(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		r.cluster.resume = func(_ job.ID, n uint32, _ string) (job.Assignment, error) {
			a := assignment(p, n)
			a.MoveIndex = 26
			return a, nil
		}
		tok := r.server.deliveries.tokens.mint(job.DispatchID{Job: someJobID, N: 7})
		h := fields{"jid": someJob, "tok": tok[:]}
		p.ask(overhop.TBeat, h, overhop.TOK)
		for _, moved := range []uint64{25, 26} {
			r.server.Stop(job.Recall{Job: someJobID, N: 7, Reason: job.RecallSuperseded, MoveIndex: moved})
			if len(r.server.deliveries.dispatches) != 1 {
				t.Fatalf("the recall by entry %d stopped a dispatch that entry 26 moved here", moved)
			}
		}
		r.server.Stop(job.Recall{Job: someJobID, N: 7, Reason: job.RecallSuperseded, MoveIndex: 27})
		if len(r.server.deliveries.dispatches) != 0 {
			t.Error("the recall by a later entry is ignored")
		}
	})
}
