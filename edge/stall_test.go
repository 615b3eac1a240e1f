package edge

import (
	"slices"
	"testing"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

func (r *rig) wantNotes(what string, want ...string) {
	r.t.Helper()
	if got := r.hands.noted(); !slices.Equal(got, want) {
		r.t.Errorf("%s: said %q, want %q", what, got, want)
	}
}

// A worker stalls with the first QUEST that it lets lie, and recovers with the
// last subscription that asks for work again.
func TestStall_Ack(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, sid := r.worker(3)
		r.yard.queues["more"] = job.Queue{Name: "more"}
		more := str(p.ask(overhop.TSubscribe, fields{"q": "more", "credits": 1}, overhop.TOK).Get("sid"))
		r.quest(p, 1, nil)
		r.quest(p, 2, nil)
		r.quest(p, 3, func(a *job.Assignment) { a.Queue, a.Key = "more", "more" })
		r.wantNotes("before the time is up")
		time.Sleep(5 * time.Second)
		r.wantNotes("three QUESTs were left", "stalled overhop/"+p.wid+" ack-timeout")
		for range 3 {
			p.expect(overhop.TCredits, "0")
		}
		p.ask(overhop.TCredit, fields{"sid": sid, "credits": 1}, overhop.TOK)
		r.wantNotes("one of two subscriptions asks")
		p.ask(overhop.TCredit, fields{"sid": more, "credits": 1}, overhop.TOK)
		p.ask(overhop.TCredit, fields{"sid": more, "credits": 1}, overhop.TOK)
		r.wantNotes("both ask", "recovered overhop/"+p.wid+" credit")

		r.quest(p, 4, nil)
		time.Sleep(5 * time.Second)
		p.expect(overhop.TCredits, "0")
		p.ask(overhop.TUnsubscribe, fields{"sid": sid}, overhop.TOK)
		r.wantNotes("it gives the subscription up", "stalled overhop/"+p.wid+" ack-timeout", "recovered overhop/"+p.wid+" left")
	})
}

// A QUEST that outlives its subscription stalls nothing: there is nothing left
// to recover by.
func TestStall_AckAfterUnsubscribe(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, sid := r.worker(1)
		r.quest(p, 1, nil)
		p.ask(overhop.TUnsubscribe, fields{"sid": sid}, overhop.TOK)
		time.Sleep(5 * time.Second)
		r.wantNotes("the time is up")
	})
}

func TestStall_Lease(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(3)
		var held1, held2 = r.quest(p, 1, nil), r.quest(p, 2, nil)
		p.ask(overhop.TAck, held(held1), overhop.TOK)
		p.ask(overhop.TAck, held(held2), overhop.TOK)
		time.Sleep(6 * time.Second)
		r.wantNotes("two leases are over", "stalled overhop/"+p.wid+" lease-expired")
		if all := r.server.Subscribers("jobs"); all.Count != 1 || all.Stalled != 1 {
			r.t.Errorf("a worker whose leases are over is told as %+v, want 1 subscribed and 1 stalled", all)
		}
		p.expect(overhop.TRecall, "0")
		p.expect(overhop.TRecall, "0")
		p.refused(overhop.TBeat, held(held1), overhop.CodeLeaseLost)
		r.wantNotes("it speaks, too late", "recovered overhop/"+p.wid+" alive")
		if all := r.server.Subscribers("jobs"); all.Count != 1 || all.Stalled != 0 {
			r.t.Errorf("a worker that speaks again is told as %+v, want 1 subscribed and none stalled", all)
		}

		q := r.quest(p, 3, nil)
		p.ask(overhop.TAck, held(q), overhop.TOK)
		p.nc.Close()
		r.wantNotes("its connection is lost")
		time.Sleep(6 * time.Second)
		r.wantNotes("and nobody came back", "stalled overhop/"+p.wid+" lease-expired")
	})
}

// A worker that comes back to the node it left has recovered, whatever number
// of jobs it goes on with. One that only speaks over two connections has not.
func TestStall_ComesBack(t *testing.T) {
	bubble(t, Config{}, func(r *rig) {
		p, _ := r.worker(3)
		first, second := r.quest(p, 1, nil), r.quest(p, 2, nil)
		p.ask(overhop.TAck, held(first), overhop.TOK)
		p.ask(overhop.TAck, held(second), overhop.TOK)
		other := r.register(true)
		other.ask(overhop.TBeat, held(first), overhop.TOK)
		p.ask(overhop.TBeat, held(first), overhop.TOK)
		r.wantNotes("two connections")
		p.nc.Close()
		again := r.register(true)
		r.wantNotes("the connection is lost")
		again.ask(overhop.TBeat, held(first), overhop.TOK)
		again.ask(overhop.TBeat, held(second), overhop.TOK)
		r.wantNotes("it comes back", "recovered overhop/"+again.wid+" resumed")
	})
}
