package overhop

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var quiet = slog.New(slog.DiscardHandler)

// work runs a worker of "mail" with room for 2 jobs in a bubble of its own,
// until test returns.
func work(t *testing.T, h Handler, test func(y *fakeYard)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { workHere(t, h, test) })
}

// workHere is work within a bubble.
func workHere(t *testing.T, h Handler, test func(y *fakeYard)) {
	y := newFakeYard(t)
	w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: quiet}
	w.Handle("mail", 2, h)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	test(y)
	stop()
	if err := <-ended; err != nil {
		t.Errorf("worker: %v", err)
	}
}

func echoHandler(_ context.Context, q *Quest) (Raw, error) { return q.Payload, nil }

// until is a handler that waits for a fact or its end.
func until(fact <-chan struct{}) Handler {
	return func(ctx context.Context, q *Quest) (Raw, error) {
		select {
		case <-fact:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// dropped answers nothing to messages of type t and closes the connection, the
// first times.
func dropped(kind int64, times int) func(*fakeNode, Envelope) (func(), bool) {
	return func(n *fakeNode, e Envelope) (func(), bool) {
		if e.T != kind || times == 0 {
			return nil, false
		}
		times--
		n.account(e)
		return func() { n.nc.Close() }, true
	}
}

// refused answers messages of type t with a code, the first times.
func refused(kind int64, code Code, times int) func(*fakeNode, Envelope) (func(), bool) {
	return func(n *fakeNode, e Envelope) (func(), bool) {
		if e.T != kind || times == 0 {
			return nil, false
		}
		times--
		n.account(e)
		return func() { n.err(e, code) }, true
	}
}

func TestWorker(t *testing.T) {
	work(t, echoHandler, func(y *fakeYard) {
		n := y.node(0)
		n.room(2)
		n.quest(1, nil)
		if got := n.one(TAck); textOf(got.Get("jid")) != "mail:1" {
			t.Errorf("ACK is %x", got)
		}
		if got, _ := n.one(TDone).Get("result").Get("n").Int(); got != 1 {
			t.Errorf("result is %d", got)
		}
		n.room(2)
	})
}

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

// A worker that leaves finishes what it has in hand, over another connection
// if it must, and takes nothing new.
func TestWorker_Leaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeYard(t)
		done := make(chan struct{})
		w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: quiet}
		w.Handle("mail", 2, until(done))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		n := y.node(0)
		n.quest(1, nil)
		stop()
		if drain, _ := n.one(TGoodbye).Get("drain").Bool(); !drain {
			t.Error("it left without finishing")
		}
		n.quest(2, nil)
		n.one(TNack)
		n.nc.Close()
		time.Sleep(3 * time.Second)
		n = y.node(1)
		n.one(TBeat)
		if got := n.heard(TSubscribe); len(got) > 0 {
			t.Error("a worker that leaves subscribed")
		}
		close(done)
		n.one(TDone)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// At the end of the grace handlers are stopped, and their ends told.
func TestWorker_GraceOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeYard(t)
		w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: quiet, Grace: 3 * time.Second}
		w.Handle("mail", 2, until(nil))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		n := y.node(0)
		n.quest(1, nil)
		stop()
		begin := time.Now()
		if err := <-ended; err != nil || time.Since(begin) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
		if retry, _ := n.one(TFail).Get("retry").Bool(); !retry {
			t.Error("no attempt is to follow")
		}
	})
}

// A node that goes silent is left, long before the network would notice.
func TestWorker_SilentNode(t *testing.T) {
	work(t, until(nil), func(y *fakeYard) {
		y.node(0).quest(1, nil)
		dead := y.node(0)
		y.answers(func(n *fakeNode, e Envelope) (func(), bool) { return nil, n == dead })
		time.Sleep(10 * time.Second)
		y.node(1).one(TSubscribe)
		if got := y.node(1).heard(TBeat); len(got) == 0 {
			t.Error("the job in hand was not taken along")
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

// A refusal that nothing would take back ends the worker; one that time might
// take back does not.
func TestWorker_Refused(t *testing.T) {
	for _, code := range hardPlaces {
		synctest.Test(t, func(t *testing.T) {
			y := newFakeYard(t)
			codes := []Code{CodeUnavailable, CodeDraining, code}
			y.answers(func(n *fakeNode, e Envelope) (func(), bool) {
				return func() { n.err(e, codes[min(n.turn, 2)]) }, e.T != THello && e.T != TRegister
			})
			w := Worker{Nodes: []string{"n1"}, Create: true, Log: quiet, Dial: y.dial}
			w.Handle("mail", 1, echoHandler)
			err := w.Run(t.Context())
			if ErrorCode(err) != code || !strings.Contains(err.Error(), `subscribe to "mail"`) || y.count() != 3 {
				t.Errorf("%s: %v after %d connections", code, err, y.count())
			}
		})
	}
}

func TestWorker_WrongToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeYard(t)
		y.answers(func(n *fakeNode, e Envelope) (func(), bool) {
			if e.T == THello && textOf(e.P.Get("token")) != "sesam" {
				t.Errorf("HELLO carries %x", e.P)
			}
			return func() { n.err(e, CodeUnauthorized); n.nc.Close() }, e.T == TRegister
		})
		w := Worker{Nodes: []string{"n1"}, Token: "sesam", Log: quiet, Dial: y.dial}
		w.Handle("mail", 1, echoHandler)
		if err := w.Run(t.Context()); ErrorCode(err) != CodeUnauthorized || y.count() != 1 {
			t.Errorf("%v after %d connections", err, y.count())
		}
	})
}

func TestWorker_SetUp(t *testing.T) {
	for want, w := range map[string]func(*Worker){
		"no Nodes":           func(w *Worker) { w.Nodes = nil },
		"no queue":           func(w *Worker) { w.queues = nil },
		`"mail" twice`:       func(w *Worker) { w.Handle("mail", 1, echoHandler) },
		`"b" with 0 credits`: func(w *Worker) { w.Handle("b", 0, echoHandler) },
		`handler false`:      func(w *Worker) { w.Handle("b", 1, nil) },
	} {
		worker := &Worker{Nodes: []string{"n1"}}
		worker.Handle("mail", 1, echoHandler)
		w(worker)
		if err := worker.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Queues have handlers and room of their own.
func TestWorker_Queues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeYard(t)
		w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: quiet}
		var ran []string
		note := func(name string) Handler {
			return func(context.Context, *Quest) (Raw, error) { ran = append(ran, name); return nil, nil }
		}
		w.Handle("mail", 2, note("mail"))
		w.Handle("video", 7, note("video"))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		n := y.node(0)
		n.room(2)
		if n.balance["video"] != 7 {
			t.Errorf("video has %d credits", n.balance["video"])
		}
		n.quest(1, func(q *Quest) { q.Queue = "video" })
		n.quest(2, nil)
		if !slices.Equal(ran, []string{"video", "mail"}) {
			t.Errorf("ran %v", ran)
		}
		stop()
		<-ended
	})
}
