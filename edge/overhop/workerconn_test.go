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

// A job continues while its lease cannot be renewed, and stops when it is lost.
func TestWorker_Beats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		causes := make(chan error, 1)
		handler := func(ctx context.Context, q *Quest) (Raw, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		}
		runWorkerHere(t, handler, func(y *fakeCluster) {
			answerBeats := func(code Code) {
				y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
					return func() {
						n.ok(e, Fields{"jobs": []any{Fields{"jid": "mail:1", "ok": false, "code": string(code)}}})
					}, e.T == TBeat
				})
			}
			answerBeats(CodeUnavailable)
			n := y.node(0)
			n.quest(1, func(q *Quest) { q.Beat = 300 * time.Millisecond })
			time.Sleep(3100 * time.Millisecond)
			if got := n.messages(TBeat); len(got) != 10 {
				t.Errorf("%d BEATs in 3.1 s, want one every 300 ms", len(got))
			}
			if len(causes) > 0 {
				t.Fatalf("stopped because of %v", <-causes)
			}
			answerBeats(CodeLeaseLost)
			var stopped *StopError
			if err := <-causes; !errors.As(err, &stopped) || stopped.Reason != StopLeaseLost {
				t.Errorf("stopped because of %v", err)
			}
			n.onlyMessage(TFail)
			n.expectBalance(2)
			before := len(n.messages(TBeat))
			time.Sleep(3 * time.Second)
			if after := len(n.messages(TBeat)); after != before {
				t.Error("a lost lease is renewed")
			}
		})
	})
}

// A job stops at the end of its lease if no node can be reached that renews it.
func TestWorker_LeaseOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		causes := make(chan error, 1)
		handler := func(ctx context.Context, q *Quest) (Raw, error) {
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return nil, ctx.Err()
		}
		runWorkerHere(t, handler, func(y *fakeCluster) {
			n := y.node(0)
			n.quest(1, nil)
			time.Sleep(3 * time.Second) // a BEAT after two
			y.dialErr = func(string) error { return errors.New("unreachable") }
			n.nc.Close()
			begin := time.Now()
			var stopped *StopError
			if err := <-causes; !errors.As(err, &stopped) || stopped.Reason != StopLeaseLost {
				t.Errorf("stopped because of %v", err)
			}
			if took := time.Since(begin); took < 4*time.Second || took > 6*time.Second {
				t.Errorf("stopped %s after the connection was lost, want at the end of the lease of 6s", took)
			}
		})
	})
}

// A node that drains is left for one that it names. Running jobs continue
// there, and recalls by the old node are ignored.
func TestWorker_Drain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		runWorkerHere(t, waitHandler(done), func(y *fakeCluster) {
			old := y.node(0)
			q := old.quest(1, nil)
			y.setDialErr(func(addr string) error {
				if addr != "elsewhere" {
					return net.ErrClosed
				}
				return nil
			})
			y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
				if n.addr == "elsewhere" && e.T == TBeat { // the job has moved: the old node recalls it
					b, _ := AppendFields(nil, TRecall, PushRID, Fields{"jid": q.JID, "tok": q.Token[:], "reason": "SUPERSEDED", "grace_ms": 0})
					old.send(b)
				}
				return nil, false
			})
			old.push(TDrain, Fields{"reason": "node stops", "close_at": time.Now(), "reconnect": []string{"elsewhere"}})
			n := y.node(1)
			n.onlyMessage(TBeat)
			n.expectBalance(1)
			close(done)
			n.onlyMessage(TDone)
			n.expectBalance(2)
			if got := old.messages(TDone); len(got) > 0 {
				t.Error("the outcome was sent to the draining node")
			}
			if _, err := old.nc.Write([]byte{0}); err == nil {
				t.Error("the connection to the draining node is still open")
			}
		})
	})
}

// A worker stays with a node that drains while no other node accepts it.
func TestWorker_DrainWithoutAlternative(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		runWorkerHere(t, waitHandler(done), func(y *fakeCluster) {
			old := y.node(0)
			old.quest(1, nil)
			y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
				return func() { n.err(e, CodeDraining) }, n != old && e.T == TSubscribe
			})
			old.push(TDrain, Fields{"reason": "node stops", "close_at": time.Now()})
			time.Sleep(5 * time.Second)
			if y.count() < 3 {
				t.Error("the worker did not try another node")
			}
			close(done)
			old.onlyMessage(TDone)
			old.push(TBye, Fields{"code": "SHUTDOWN"})
			old.nc.Close()
			y.setAnswer(nil)
			time.Sleep(3 * time.Second)
			y.node(y.count() - 1).expectBalance(2)
		})
	})
}

func TestWorker_Recalled(t *testing.T) {
	runWorker(t, waitHandler(nil), func(y *fakeCluster) {
		n := y.node(0)
		q := n.quest(1, nil)
		n.push(TRecall, Fields{"jid": q.JID, "tok": make([]byte, TokenLen), "reason": "CANCELLED", "grace_ms": 2000})
		if got := n.messages(TFail); len(got) > 0 {
			t.Fatal("the job stopped for another dispatch's token")
		}
		n.push(TRecall, Fields{"jid": q.JID, "tok": q.Token[:], "reason": "CANCELLED", "grace_ms": 2000})
		failure := n.onlyMessage(TFail).Get("error")
		if textOf(failure.Get("type")) != "cancelled" || !strings.Contains(textOf(failure.Get("message")), "CANCELLED") {
			t.Errorf("failed with %s", AppendLossyJSON(nil, failure))
		}
		n.expectBalance(2)
	})
}

// A credit that the node has restored is not returned again with the job's
// outcome, and a stalled subscription gets new credits.
func TestWorker_Credits(t *testing.T) {
	runWorker(t, waitHandler(nil), func(y *fakeCluster) {
		n := y.node(0)
		q := n.quest(1, nil)
		n.balance["mail"]++
		n.push(TCredits, Fields{"sid": "sid-mail", "credits": 2, "reason": CreditsRestored})
		n.push(TRecall, Fields{"jid": q.JID, "tok": q.Token[:], "reason": "CANCELLED", "grace_ms": 0})
		n.onlyMessage(TFail)
		n.expectBalance(2)
		n.quest(2, nil)
		n.balance["mail"] = 0
		n.push(TCredits, Fields{"sid": "sid-mail", "credits": 0, "reason": CreditsStalled})
		n.expectBalance(1)
	})
}
