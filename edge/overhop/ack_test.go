package overhop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// holdAcks answers no ACK until the test does, with the function that next returns.
func holdAcks(y *fakeCluster) (next func() (*fakeNode, Envelope)) {
	acks := make(chan func() (*fakeNode, Envelope), 100)
	y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
		if e.T == TAck {
			acks <- func() (*fakeNode, Envelope) { return n, e }
		}
		return nil, e.T == TAck
	})
	return func() (*fakeNode, Envelope) { return (<-acks)() }
}

// runUnacknowledged runs a worker that has received quest from n, in a synctest bubble until
// test returns. The test answers the ACKs of the worker, each of which next returns.
func runUnacknowledged(t *testing.T, test func(n *fakeNode, quest Quest, next func() (*fakeNode, Envelope))) {
	t.Helper()
	runWorker(t, echoHandler, func(y *fakeCluster) {
		next := holdAcks(y)
		n := y.node(0)
		test(n, n.quest(1, nil), next)
	})
}

// A handler starts when the node has answered the ACK: before that, another worker may
// have the job.
func TestWorker_StartsWhenAcknowledged(t *testing.T) {
	runUnacknowledged(t, func(n *fakeNode, _ Quest, next func() (*fakeNode, Envelope)) {
		time.Sleep(3 * time.Second)
		if done := n.messages(TDone); len(done) > 0 {
			t.Fatal("the handler has run before the ACK was answered")
		}
		_, ack := next()
		n.ok(ack, Fields{"lease_ms": 6000})
		n.onlyMessage(TDone)
		n.expectBalance(2)
	})
}

// A job that the node has given up is not started, reported or kept, and its credit is used
// for another.
func TestWorker_AckRefused(t *testing.T) {
	for _, code := range []Code{CodeAckTimeout, CodeLeaseLost, CodeJobNotActive, CodeAlreadyTerminal, CodeJobNotFound, "OF_A_LATER_RELEASE"} {
		t.Run(string(code), func(t *testing.T) {
			runWorker(t, echoHandler, func(y *fakeCluster) {
				y.setAnswer(refuseAnswers(TAck, code, 1))
				n := y.node(0)
				n.quest(1, nil)
				if len(n.messages(TDone))+len(n.messages(TFail)) > 0 {
					t.Fatal("the handler has run")
				}
				n.expectBalance(2)
				n.quest(2, nil)
				n.onlyMessage(TDone)
				n.expectBalance(2)
			})
		})
	}
}

// A worker that was stopped past the ACK time finds its QUEST, the news that its credits
// are gone, and the refusal of its ACK. It may have the whole of its credits afterwards.
func TestWorker_AckRefused_Stalled(t *testing.T) {
	runUnacknowledged(t, func(n *fakeNode, _ Quest, next func() (*fakeNode, Envelope)) {
		n.mu.Lock()
		n.balance["mail"] = 0
		n.mu.Unlock()
		n.push(TCredits, Fields{"sid": "sid-mail", "credits": 0, "reason": CreditsStalled})
		n.expectBalance(1)
		_, ack := next()
		n.err(ack, CodeAckTimeout)
		n.expectBalance(2)
		if len(n.messages(TDone)) > 0 {
			t.Error("the handler has run")
		}
	})
}

// A job that was recalled before its ACK was answered is not started.
func TestWorker_RecalledBeforeStart(t *testing.T) {
	runUnacknowledged(t, func(n *fakeNode, q Quest, next func() (*fakeNode, Envelope)) {
		n.push(TRecall, Fields{"jid": q.JID, "tok": q.Token[:], "reason": "CANCELLED", "grace_ms": 5000})
		_, ack := next()
		n.ok(ack, Fields{"lease_ms": 6000})
		if kind, _ := n.onlyMessage(TFail).Get("error").Get("type").Str(); kind != "cancelled" {
			t.Errorf("the job failed with the type %q", kind)
		}
		if len(n.messages(TDone)) > 0 {
			t.Error("the handler has run")
		}
	})
}

// A node that is unavailable is asked again.
func TestWorker_AckUnavailable(t *testing.T) {
	runWorker(t, echoHandler, func(y *fakeCluster) {
		y.setAnswer(refuseAnswers(TAck, CodeUnavailable, 2))
		n := y.node(0)
		n.quest(1, nil)
		time.Sleep(time.Second)
		n.onlyMessage(TDone)
		if got := len(n.messages(TAck)); got != 3 {
			t.Errorf("%d ACKs, want 3", got)
		}
	})
}

// If the connection is lost before the ACK is answered, the node may have received it or not:
// the next node decides whether the job starts.
func TestWorker_AckUnanswered(t *testing.T) {
	for name, c := range map[string]struct {
		code Code
		done int
	}{"running": {"", 1}, "given to another": {CodeLeaseLost, 0}} {
		t.Run(name, func(t *testing.T) {
			runUnacknowledged(t, func(n *fakeNode, _ Quest, next func() (*fakeNode, Envelope)) {
				next()
				n.nc.Close()
				n, ack := next()
				if n.index != 1 || len(n.messages(TDone)) > 0 {
					t.Fatal("the job has not waited for the next node")
				}
				if c.code != "" {
					n.err(ack, c.code)
				} else {
					n.ok(ack, Fields{"lease_ms": 6000})
				}
				if got := len(n.messages(TDone)); got != c.done {
					t.Errorf("%d DONEs, want %d", got, c.done)
				}
				n.expectBalance(2)
			})
		})
	}
}

// A job whose ACK no node has answered within its lease is forgotten.
func TestWorker_AckNeverAnswered(t *testing.T) {
	runUnacknowledged(t, func(n *fakeNode, _ Quest, next func() (*fakeNode, Envelope)) {
		next()
		n.cluster.setDialErr(func(string) error { return errors.New("no node") })
		n.nc.Close()
		time.Sleep(10 * time.Second)
		n.cluster.setDialErr(nil)
		time.Sleep(30 * time.Second)
		n = n.cluster.node(1)
		if got := n.messages(TAck); len(got) > 0 {
			t.Errorf("the job is acknowledged again: %x", got)
		}
		n.expectBalance(2)
	})
}

// A process that was stopped after the ACK was answered, past the end of the lease, asks
// again before it starts the handler.
func TestWorker_LeaseOverBeforeStart(t *testing.T) {
	for _, code := range []Code{"", CodeLeaseLost} {
		runUnacknowledged(t, func(n *fakeNode, _ Quest, next func() (*fakeNode, Envelope)) {
			_, ack := next()
			n.ok(ack, Fields{"lease_ms": 0})
			_, ack = next()
			if len(n.messages(TDone)) > 0 {
				t.Fatal("the handler has run without a lease")
			}
			want := 1
			if code == "" {
				n.ok(ack, Fields{"lease_ms": 100})
			} else {
				n.err(ack, code)
				want = 0
			}
			if got := len(n.messages(TDone)); got != want {
				t.Errorf("%d DONEs after the second ACK, want %d", got, want)
			}
			n.expectBalance(2)
		})
	}
}

// A worker that stops while an ACK is unanswered gives the job back and does not start it.
func TestWorker_StopsBeforeStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeCluster(t)
		next := holdAcks(y)
		w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: discardLog, ShutdownGrace: time.Second}
		w.Handle("mail", 2, echoHandler)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		n := y.node(0)
		n.quest(1, nil)
		_, ack := next()
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		n.ok(ack, Fields{"lease_ms": 6000})
		byes := n.messages(TGoodbye)
		if drain, _ := byes[len(byes)-1].Get("drain").Bool(); drain || len(byes) != 2 || len(n.messages(TDone)) > 0 {
			t.Errorf("the worker says %x and reports %d outcomes", byes, len(n.messages(TDone)))
		}
	})
}
