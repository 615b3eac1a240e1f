package overhop

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// An end whose answer was lost is told again on the next connection, under the
// same token, and takes nothing of the worker's room for good.
func TestWorker_LostAnswer(t *testing.T) {
	work(t, echoHandler, func(y *fakeYard) {
		y.answers(dropped(TDone, 1))
		first := y.node(0).quest(1, nil)
		time.Sleep(3 * time.Second)
		n := y.node(1)
		if tok, _ := n.one(TDone).Get("tok").Bin(); string(tok) != string(first.Token[:]) {
			t.Errorf("told again under the token %x", tok)
		}
		n.room(2)
	})
}

// An end that the yard cannot take yet is told until it can, and gives its
// credit once.
func TestWorker_EndUnavailable(t *testing.T) {
	work(t, echoHandler, func(y *fakeYard) {
		y.answers(refused(TDone, CodeUnavailable, 3))
		n := y.node(0)
		n.quest(1, nil)
		time.Sleep(3 * time.Second)
		if got := n.heard(TDone); len(got) != 4 {
			t.Errorf("DONE was told %d times, want 4", len(got))
		}
		n.room(2)
		if y.count() != 1 {
			t.Error("the worker left its node")
		}
	})
}

// The same dispatch handed out twice is one job in hand.
func TestWorker_SameTokenTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		done := make(chan struct{})
		workHere(t, func(ctx context.Context, q *Quest) (Raw, error) { runs++; return until(done)(ctx, q) }, func(y *fakeYard) {
			n := y.node(0)
			n.quest(1, nil)
			n.quest(1, nil)
			n.room(1)
			close(done)
			n.one(TDone)
			n.room(2)
			if runs != 1 {
				t.Errorf("the handler ran %d times", runs)
			}
		})
	})
}

// A job's time is measured from when it came, whatever the two clocks say.
func TestWorker_Deadline(t *testing.T) {
	for _, skew := range []time.Duration{-time.Hour, 0, time.Hour} {
		work(t, until(nil), func(y *fakeYard) {
			n := y.node(0)
			n.quest(1, func(q *Quest) {
				q.LeaseUntil = q.LeaseUntil.Add(skew)
				q.Deadline = time.Now().Add(skew + 10*time.Second)
			})
			time.Sleep(9 * time.Second)
			if got := n.heard(TFail); len(got) > 0 {
				t.Fatalf("clocks %s apart: ended too early", skew)
			}
			time.Sleep(1100 * time.Millisecond)
			p := n.one(TFail)
			if retry, _ := p.Get("retry").Bool(); retry || textOf(p.Get("error").Get("type")) != "timeout" {
				t.Errorf("clocks %s apart: %s", skew, AppendLossyJSON(nil, p))
			}
		})
	}
}

// Whatever a handler does, its job ends, the worker lives, and its room is
// what it was.
func TestWorker_BadHandlers(t *testing.T) {
	for name, c := range map[string]struct {
		handler Handler
		kind    string
		final   bool
	}{
		"panics":           {func(context.Context, *Quest) (Raw, error) { panic("oh") }, "panic", false},
		"exits":            {func(context.Context, *Quest) (Raw, error) { runtime.Goexit(); return nil, nil }, "panic", false},
		"gives floats":     {func(context.Context, *Quest) (Raw, error) { return Raw{0xca, 0, 0, 0, 0}, nil }, "invalid_result", true},
		"gives too much":   {func(context.Context, *Quest) (Raw, error) { return AppendBin(nil, make([]byte, 9<<20)), nil }, "invalid_result", true},
		"fails in Latin-1": {func(context.Context, *Quest) (Raw, error) { return nil, errors.New("\xfcbel") }, "", false},
		"fails and says so": {func(context.Context, *Quest) (Raw, error) {
			return nil, &FailError{Message: "m", Type: "t", Details: Fields{"a": 1}.Raw(), Final: true}
		}, "t", true},
	} {
		t.Run(name, func(t *testing.T) {
			work(t, c.handler, func(y *fakeYard) {
				n := y.node(0)
				for i := range 5 {
					n.quest(i, nil)
				}
				fails := n.heard(TFail)
				if len(fails) != 5 || y.count() != 1 {
					t.Fatalf("%d FAILs of 5 over %d connections", len(fails), y.count())
				}
				if retry, _ := fails[0].Get("retry").Bool(); textOf(fails[0].Get("error").Get("type")) != c.kind || retry == c.final {
					t.Errorf("failed with %s", AppendLossyJSON(nil, fails[0]))
				}
				n.room(2)
			})
		})
	}
}

// A result that cannot be sent takes back what was noted of its credit: the
// one that the node has given back itself is still not given twice.
func TestWorker_UnsendableAfterRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		handler := func(context.Context, *Quest) (Raw, error) { <-done; return Raw{0xca, 0, 0, 0, 0}, nil }
		workHere(t, handler, func(y *fakeYard) {
			n := y.node(0)
			n.quest(1, nil)
			n.balance["mail"]++
			n.push(TCredits, Fields{"sid": "sid-mail", "credits": 2, "reason": CreditsRestored})
			close(done)
			n.one(TFail)
			n.room(2)
		})
	})
}

// An end that was told before the subscription came gives no credit when the
// worker leaves meanwhile: it wants no more jobs.
func TestWorker_LeavesWhileTelling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeYard(t)
		done := make(chan struct{})
		w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: quiet}
		w.Handle("mail", 2, func(ctx context.Context, q *Quest) (Raw, error) {
			if q.JID == "mail:1" {
				return nil, nil
			}
			return until(done)(ctx, q)
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		first := y.node(0)
		first.quest(2, nil) // keeps the worker here
		var owed Envelope
		y.answers(func(n *fakeNode, e Envelope) (func(), bool) {
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
		n.one(TDone)
		n.one(TSubscribe)
		y.answers(nil)
		stop()
		n.one(TGoodbye)
		n.ok(owed, Fields{})
		if got := n.heard(TCredit); len(got) > 0 {
			t.Errorf("a worker that leaves asks for more: %x", got)
		}
		close(done)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := n.heard(TDone); len(got) != 2 {
			t.Errorf("%d ends were told, want 2", len(got))
		}
	})
}

// Progress and log lines reach the node from within a handler, and tell it
// when the job is no longer its own.
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
		workHere(t, handler, func(y *fakeYard) {
			y.answers(func(n *fakeNode, e Envelope) (func(), bool) {
				percent, _ := e.P.Get("percent").Int()
				return func() { n.err(e, CodeLeaseLost) }, e.T == TProgress && percent == 50
			})
			n := y.node(0)
			n.quest(1, nil)
			p := n.heard(TProgress)[0]
			if percent, _ := p.Get("percent").Int(); percent != 100 {
				t.Errorf("percent is %d", percent)
			}
			if rows, _ := p.Get("data").Get("rows").Int(); rows != 7 {
				t.Errorf("data is %x", p.Get("data"))
			}
			if l, err := ParseLog(n.one(TLog)); err != nil || len(l.Lines) != 2 || l.Lines[1].Text != "two" || l.Lines[1].At == "" {
				t.Errorf("log is %+v, %v", l, err)
			}
			var stopped *Stopped
			if err := <-lost; !errors.As(err, &stopped) {
				t.Errorf("progress of a lost job: %v", err)
			}
			n.one(TFail)
		})
		if err := new(Quest).Progress(t.Context(), 1, nil); err == nil {
			t.Error("progress of a job in nobody's hands")
		}
	})
}
