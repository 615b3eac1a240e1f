package overhop

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A job goes on while its lease cannot be renewed, and stops when it is lost.
func TestWorker_Beats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		causes := make(chan error, 1)
		handler := func(ctx context.Context, q *Quest) (Raw, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		}
		workHere(t, handler, func(y *fakeYard) {
			say := func(code Code) {
				y.answers(func(n *fakeNode, e Envelope) (func(), bool) {
					return func() {
						n.ok(e, Fields{"jobs": []any{Fields{"jid": "mail:1", "ok": false, "code": string(code)}}})
					}, e.T == TBeat
				})
			}
			say(CodeUnavailable)
			n := y.node(0)
			n.quest(1, func(q *Quest) { q.Beat = 300 * time.Millisecond })
			time.Sleep(3100 * time.Millisecond)
			if got := n.heard(TBeat); len(got) != 10 {
				t.Errorf("%d BEATs in 3.1 s, want one every 300 ms", len(got))
			}
			if len(causes) > 0 {
				t.Fatalf("stopped because of %v", <-causes)
			}
			say(CodeLeaseLost)
			var stopped *Stopped
			if err := <-causes; !errors.As(err, &stopped) || stopped.Reason != StoppedLeaseLost {
				t.Errorf("stopped because of %v", err)
			}
			n.one(TFail)
			n.room(2)
			before := len(n.heard(TBeat))
			time.Sleep(3 * time.Second)
			if after := len(n.heard(TBeat)); after != before {
				t.Error("a lost lease is renewed")
			}
		})
	})
}

// A node that drains is left for one that it names; what is in hand goes on
// there, whatever the old node says of it.
func TestWorker_Drain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		workHere(t, until(done), func(y *fakeYard) {
			old := y.node(0)
			q := old.quest(1, nil)
			y.mu.Lock()
			y.refuse = func(addr string) error {
				if addr != "elsewhere" {
					return net.ErrClosed
				}
				return nil
			}
			y.mu.Unlock()
			y.answers(func(n *fakeNode, e Envelope) (func(), bool) {
				if n.addr == "elsewhere" && e.T == TBeat { // the job has moved: the old node is told
					b, _ := AppendFields(nil, TRecall, PushRID, Fields{"jid": q.JID, "tok": q.Token[:], "reason": "SUPERSEDED", "grace_ms": 0})
					old.send(b)
				}
				return nil, false
			})
			old.push(TDrain, Fields{"reason": "node stops", "close_at": time.Now(), "reconnect": []string{"elsewhere"}})
			n := y.node(1)
			n.one(TBeat)
			n.room(1)
			close(done)
			n.one(TDone)
			n.room(2)
			if got := old.heard(TDone); len(got) > 0 {
				t.Error("the end was told to the node that drains")
			}
			if _, err := old.nc.Write([]byte{0}); err == nil {
				t.Error("the connection that drained is still open")
			}
		})
	})
}

// While no other node will have it, a worker stays with the one that drains.
func TestWorker_DrainNowhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		workHere(t, until(done), func(y *fakeYard) {
			old := y.node(0)
			old.quest(1, nil)
			y.answers(func(n *fakeNode, e Envelope) (func(), bool) {
				return func() { n.err(e, CodeDraining) }, n != old && e.T == TSubscribe
			})
			old.push(TDrain, Fields{"reason": "node stops", "close_at": time.Now()})
			time.Sleep(5 * time.Second)
			if y.count() < 3 {
				t.Error("it did not look for another node")
			}
			close(done)
			old.one(TDone)
			old.push(TBye, Fields{"code": "SHUTDOWN"})
			old.nc.Close()
			y.answers(nil)
			time.Sleep(3 * time.Second)
			y.node(y.count() - 1).room(2)
		})
	})
}

func TestWorker_Recalled(t *testing.T) {
	work(t, until(nil), func(y *fakeYard) {
		n := y.node(0)
		q := n.quest(1, nil)
		n.push(TRecall, Fields{"jid": q.JID, "tok": make([]byte, TokenLen), "reason": "CANCELLED", "grace_ms": 2000})
		if got := n.heard(TFail); len(got) > 0 {
			t.Fatal("it stopped for another's token")
		}
		n.push(TRecall, Fields{"jid": q.JID, "tok": q.Token[:], "reason": "CANCELLED", "grace_ms": 2000})
		failure := n.one(TFail).Get("error")
		if textOf(failure.Get("type")) != "cancelled" || !strings.Contains(textOf(failure.Get("message")), "CANCELLED") {
			t.Errorf("failed with %s", AppendLossyJSON(nil, failure))
		}
		n.room(2)
	})
}

// A credit that the node has given back itself does not come a second time
// with the job's end, and a stalled subscription gets its room anew.
func TestWorker_Credits(t *testing.T) {
	work(t, until(nil), func(y *fakeYard) {
		n := y.node(0)
		q := n.quest(1, nil)
		n.balance["mail"]++
		n.push(TCredits, Fields{"sid": "sid-mail", "credits": 2, "reason": CreditsRestored})
		n.push(TRecall, Fields{"jid": q.JID, "tok": q.Token[:], "reason": "CANCELLED", "grace_ms": 0})
		n.one(TFail)
		n.room(2)
		n.quest(2, nil)
		n.balance["mail"] = 0
		n.push(TCredits, Fields{"sid": "sid-mail", "credits": 0, "reason": CreditsStalled})
		n.room(1)
	})
}
