package overhop

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// An outcome whose answer was lost is sent again over the next connection,
// under the same token, and the worker gets its credit back.
func TestWorker_LostAnswer(t *testing.T) {
	runWorker(t, echoHandler, func(y *fakeCluster) {
		y.setAnswer(dropAnswers(TDone, 1))
		first := y.node(0).quest(1, nil)
		time.Sleep(3 * time.Second)
		n := y.node(1)
		if tok, _ := n.onlyMessage(TDone).Get("tok").Bin(); string(tok) != string(first.Token[:]) {
			t.Errorf("sent again under the token %x", tok)
		}
		n.expectBalance(2)
	})
}

// An outcome that the yard cannot accept yet is sent until it can, and its
// credit is returned once.
func TestWorker_OutcomeUnavailable(t *testing.T) {
	runWorker(t, echoHandler, func(y *fakeCluster) {
		y.setAnswer(refuseAnswers(TDone, CodeUnavailable, 3))
		n := y.node(0)
		n.quest(1, nil)
		time.Sleep(3 * time.Second)
		if got := n.messages(TDone); len(got) != 4 {
			t.Errorf("DONE was sent %d times, want 4", len(got))
		}
		n.expectBalance(2)
		if y.count() != 1 {
			t.Error("the worker left its node")
		}
	})
}

// A dispatch that is delivered twice is run once.
func TestWorker_DuplicateQuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		done := make(chan struct{})
		runWorkerHere(t, func(ctx context.Context, q *Quest) (Raw, error) { runs++; return waitHandler(done)(ctx, q) }, func(y *fakeCluster) {
			n := y.node(0)
			n.quest(1, nil)
			n.quest(1, nil)
			n.expectBalance(1)
			close(done)
			n.onlyMessage(TDone)
			n.expectBalance(2)
			if runs != 1 {
				t.Errorf("the handler ran %d times", runs)
			}
		})
	})
}

// A job's time is measured from its arrival, whatever the difference of the
// clocks.
func TestWorker_Deadline(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
		runWorker(t, waitHandler(nil), func(y *fakeCluster) {
			n := y.node(0)
			n.quest(1, func(q *Quest) {
				q.LeaseUntil = q.LeaseUntil.Add(skew)
				q.Deadline = time.Now().Add(skew + 10*time.Second)
			})
			time.Sleep(9 * time.Second)
			if got := n.messages(TFail); len(got) > 0 {
				t.Fatalf("clocks %s apart: ended too early", skew)
			}
			time.Sleep(1100 * time.Millisecond)
			p := n.onlyMessage(TFail)
			if retry, _ := p.Get("retry").Bool(); retry || textOf(p.Get("error").Get("type")) != "timeout" {
				t.Errorf("clocks %s apart: %s", skew, AppendLossyJSON(nil, p))
			}
		})
	}
}

// exitError is an error whose text ends the goroutine.
type exitError struct{}

func (exitError) Error() string { runtime.Goexit(); return "" }

// Whatever a handler does, its job ends, the worker continues, and its credits
// are restored.
func TestWorker_BadHandlers(t *testing.T) {
	for name, c := range map[string]struct {
		handler Handler
		kind    string
		final   bool
	}{
		"panics":           {func(context.Context, *Quest) (Raw, error) { panic("oh") }, "panic", false},
		"exits":            {func(context.Context, *Quest) (Raw, error) { runtime.Goexit(); return nil, nil }, "panic", false},
		"returns floats":   {func(context.Context, *Quest) (Raw, error) { return Raw{0xca, 0, 0, 0, 0}, nil }, "invalid_result", true},
		"returns too much": {func(context.Context, *Quest) (Raw, error) { return AppendBin(nil, make([]byte, 9<<20)), nil }, "invalid_result", true},
		"fails in Latin-1": {func(context.Context, *Quest) (Raw, error) { return nil, errors.New("\xfcbel") }, "", false},
		"exits in Error":   {func(context.Context, *Quest) (Raw, error) { return nil, exitError{} }, "panic", false},
		"panics in Error":  {func(context.Context, *Quest) (Raw, error) { return nil, (*net.OpError)(nil) }, "", false},
		"panics in panic":  {func(context.Context, *Quest) (Raw, error) { panic(exitError{}) }, "panic", false},
		"fails binary":     {func(context.Context, *Quest) (Raw, error) { return nil, &FailError{Type: "\xff", Code: "\xff"} }, "\uFFFD", false},
		"fails at length":  {func(context.Context, *Quest) (Raw, error) { return nil, errors.New(strings.Repeat("x", 9<<20)) }, "", false},
		"details too much": {func(context.Context, *Quest) (Raw, error) {
			return nil, &FailError{Message: "m", Type: "t", Details: AppendBin(nil, make([]byte, 9<<20))}
		}, "t", false},
		"fails finally": {func(context.Context, *Quest) (Raw, error) {
			return nil, &FailError{Message: "m", Type: "t", Details: Fields{"a": 1}.Raw(), Final: true}
		}, "t", true},
	} {
		t.Run(name, func(t *testing.T) {
			runWorker(t, c.handler, func(y *fakeCluster) {
				n := y.node(0)
				for i := range 5 {
					n.quest(i, nil)
				}
				fails := n.messages(TFail)
				if len(fails) != 5 || y.count() != 1 {
					t.Fatalf("%d FAILs of 5 over %d connections", len(fails), y.count())
				}
				if retry, _ := fails[0].Get("retry").Bool(); textOf(fails[0].Get("error").Get("type")) != c.kind || retry == c.final {
					t.Errorf("failed with %s", AppendLossyJSON(nil, fails[0]))
				}
				n.expectBalance(2)
			})
		})
	}
}

// The credit of a result that cannot be sent is accounted for again: one that
// the node has already restored is not returned twice.
func TestWorker_UnsendableAfterCreditRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		handler := func(context.Context, *Quest) (Raw, error) { <-done; return Raw{0xca, 0, 0, 0, 0}, nil }
		runWorkerHere(t, handler, func(y *fakeCluster) {
			n := y.node(0)
			n.quest(1, nil)
			n.balance["mail"]++
			n.push(TCredits, Fields{"sid": "sid-mail", "credits": 2, "reason": CreditsRestored})
			close(done)
			n.onlyMessage(TFail)
			n.expectBalance(2)
		})
	})
}

// A worker that is stopping does not return the credit of an outcome that was
// sent before it subscribed at the new node.
func TestWorker_StopsWhileReporting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeCluster(t)
		done := make(chan struct{})
		w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: discardLog}
		w.Handle("mail", 2, func(ctx context.Context, q *Quest) (Raw, error) {
			if q.JID == "mail:1" {
				return nil, nil
			}
			return waitHandler(done)(ctx, q)
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		first := y.node(0)
		first.quest(2, nil) // keeps the worker here
		var owed Envelope
		y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
			switch {
			case e.T != TDone:
				return nil, false
			case n == first:
				return func() { n.nc.Close() }, true
			}
			owed = e
			return nil, true
		})
		first.quest(1, nil)
		time.Sleep(3 * time.Second)
		n := y.node(1)
		n.onlyMessage(TDone)
		n.onlyMessage(TSubscribe)
		y.setAnswer(nil)
		stop()
		n.onlyMessage(TGoodbye)
		n.ok(owed, Fields{})
		if got := n.messages(TCredit); len(got) > 0 {
			t.Errorf("a stopping worker sent credits: %x", got)
		}
		close(done)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := n.messages(TDone); len(got) != 2 {
			t.Errorf("%d outcomes were sent, want 2", len(got))
		}
	})
}

// Progress and log lines of a handler reach the node, and return an error when
// the lease is lost.
func TestQuest_ProgressAndLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := make(chan error, 1)
		handler := func(ctx context.Context, q *Quest) (Raw, error) {
			if err := q.Progress(ctx, 140, map[string]int{"rows": 7}); err != nil {
				return nil, err
			}
			if err := q.Log(ctx, "one", "two"); err != nil {
				return nil, err
			}
			if err := q.Progress(ctx, 1, 0.5); err == nil {
				return nil, errors.New("a float was sent")
			}
			lost <- q.Progress(ctx, 50, nil)
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		runWorkerHere(t, handler, func(y *fakeCluster) {
			y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
				percent, _ := e.P.Get("percent").Int()
				return func() { n.err(e, CodeLeaseLost) }, e.T == TProgress && percent == 50
			})
			n := y.node(0)
			n.quest(1, nil)
			p := n.messages(TProgress)[0]
			if percent, _ := p.Get("percent").Int(); percent != 100 {
				t.Errorf("percent is %d", percent)
			}
			if rows, _ := p.Get("data").Get("rows").Int(); rows != 7 {
				t.Errorf("data is %x", p.Get("data"))
			}
			if l, err := ParseLog(n.onlyMessage(TLog)); err != nil || len(l.Lines) != 2 || l.Lines[1].Text != "two" || l.Lines[1].At == "" {
				t.Errorf("log is %+v, %v", l, err)
			}
			var stopped *StopError
			if err := <-lost; !errors.As(err, &stopped) {
				t.Errorf("progress of a lost job: %v", err)
			}
			n.onlyMessage(TFail)
		})
		if err := new(Quest).Progress(t.Context(), 1, nil); err == nil {
			t.Error("Progress outside of a handler returned no error")
		}
	})
}
