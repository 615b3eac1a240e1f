package edge

import (
	"slices"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

func (h *harness) expectNotes(what string, want ...string) {
	h.t.Helper()
	if got := h.executor.takeNotes(); !slices.Equal(got, want) {
		h.t.Errorf("%s: notes are %q, want %q", what, got, want)
	}
}

// A worker stalls with the first QUEST that it does not acknowledge, and
// recovers with the last stalled subscription that receives credits again.
func TestStall_Ack(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, sid := r.startWorker(3)
		r.cluster.queues["more"] = job.Queue{Name: "more"}
		more := str(p.ask(overhop.TSubscribe, fields{"q": "more", "credits": 1}, overhop.TOK).Get("sid"))
		r.startJob(p, 1, nil)
		r.startJob(p, 2, nil)
		r.startJob(p, 3, func(a *job.Assignment) { a.Queue, a.Key = "more", "more" })
		r.expectNotes("before the time is up")
		time.Sleep(5 * time.Second)
		r.expectNotes("three QUESTs were left", "stalled overhop/"+p.wid+" ack-timeout")
		for range 3 {
			p.expect(overhop.TCredits, "0")
		}
		p.ask(overhop.TCredit, fields{"sid": sid, "credits": 1}, overhop.TOK)
		r.expectNotes("one of two subscriptions asks")
		p.ask(overhop.TCredit, fields{"sid": more, "credits": 1}, overhop.TOK)
		p.ask(overhop.TCredit, fields{"sid": more, "credits": 1}, overhop.TOK)
		r.expectNotes("both ask", "recovered overhop/"+p.wid+" credit")

		r.startJob(p, 4, nil)
		time.Sleep(5 * time.Second)
		p.expect(overhop.TCredits, "0")
		p.ask(overhop.TUnsubscribe, fields{"sid": sid}, overhop.TOK)
		r.expectNotes("it gives the subscription up", "stalled overhop/"+p.wid+" ack-timeout", "recovered overhop/"+p.wid+" left")
	})
}

// A QUEST that is not acknowledged after its subscription ended stalls nothing,
// because the worker could not recover.
func TestStall_AckAfterUnsubscribe(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, sid := r.startWorker(1)
		r.startJob(p, 1, nil)
		p.ask(overhop.TUnsubscribe, fields{"sid": sid}, overhop.TOK)
		time.Sleep(5 * time.Second)
		r.expectNotes("the time is up")
	})
}

func TestStall_Lease(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		var held1, held2 = r.startJob(p, 1, nil), r.startJob(p, 2, nil)
		p.ask(overhop.TAck, leaseFields(held1), overhop.TOK)
		p.ask(overhop.TAck, leaseFields(held2), overhop.TOK)
		time.Sleep(6 * time.Second)
		r.expectNotes("two leases are over", "stalled overhop/"+p.wid+" lease-expired")
		if all := r.server.Subscribers("jobs"); all.Count != 1 || all.Stalled != 1 {
			r.t.Errorf("subscribers after two leases expired: %+v, want 1 subscribed and 1 stalled", all)
		}
		p.expect(overhop.TRecall, "0")
		p.expect(overhop.TRecall, "0")
		p.expectErr(overhop.TBeat, leaseFields(held1), overhop.CodeLeaseLost)
		r.expectNotes("it speaks, too late", "recovered overhop/"+p.wid+" alive")
		if all := r.server.Subscribers("jobs"); all.Count != 1 || all.Stalled != 0 {
			r.t.Errorf("subscribers after the worker sent a BEAT: %+v, want 1 subscribed and none stalled", all)
		}

		q := r.startJob(p, 3, nil)
		p.ask(overhop.TAck, leaseFields(q), overhop.TOK)
		p.nc.Close()
		r.expectNotes("its connection is lost")
		time.Sleep(6 * time.Second)
		r.expectNotes("and no worker came back", "stalled overhop/"+p.wid+" lease-expired")
	})
}

// A worker that reconnects to the node has recovered, once for all jobs that it
// resumes. A worker that only uses two connections has not.
func TestStall_WorkerResumes(t *testing.T) {
	bubble(t, Config{}, func(r *harness) {
		p, _ := r.startWorker(3)
		first, second := r.startJob(p, 1, nil), r.startJob(p, 2, nil)
		p.ask(overhop.TAck, leaseFields(first), overhop.TOK)
		p.ask(overhop.TAck, leaseFields(second), overhop.TOK)
		other := r.register(true)
		other.ask(overhop.TBeat, leaseFields(first), overhop.TOK)
		p.ask(overhop.TBeat, leaseFields(first), overhop.TOK)
		r.expectNotes("two connections")
		p.nc.Close()
		again := r.register(true)
		r.expectNotes("the connection is lost")
		again.ask(overhop.TBeat, leaseFields(first), overhop.TOK)
		again.ask(overhop.TBeat, leaseFields(second), overhop.TOK)
		r.expectNotes("it comes back", "recovered overhop/"+again.wid+" resumed")
	})
}
