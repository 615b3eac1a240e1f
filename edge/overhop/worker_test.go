package overhop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// At the end of the grace handlers are stopped. Those with a last word have it
// told; what else is in hand goes back, and nothing of it has failed.
func TestWorker_GraceOver(t *testing.T) {
	heeds := func(ctx context.Context) (Raw, error) { <-ctx.Done(); return nil, ctx.Err() }
	wraps := func(ctx context.Context) (Raw, error) {
		<-ctx.Done()
		return nil, fmt.Errorf("send: %w", context.Cause(ctx))
	}
	for name, c := range map[string]struct {
		handler    func(context.Context) (Raw, error)
		done, fail int
		back       bool
		after      time.Duration // from the end of the grace
	}{
		"heeds":   {heeds, 0, 0, true, 0},
		"wraps":   {wraps, 0, 0, true, 0},
		"deaf":    {func(context.Context) (Raw, error) { time.Sleep(time.Minute); return nil, nil }, 0, 0, true, 2 * time.Second},
		"ends":    {func(ctx context.Context) (Raw, error) { <-ctx.Done(); time.Sleep(time.Second); return nil, nil }, 1, 0, false, time.Second},
		"fails":   {func(ctx context.Context) (Raw, error) { <-ctx.Done(); return nil, errors.New("half done") }, 0, 1, false, 0},
		"says so": {func(ctx context.Context) (Raw, error) { <-ctx.Done(); return nil, &FailError{Message: "m"} }, 0, 1, false, 0},
		"its own": {func(ctx context.Context) (Raw, error) { <-ctx.Done(); return nil, &Stopped{StoppedWorker} }, 0, 1, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := newFakeYard(t)
				y.answers(partsAsked)
				w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: quiet, Grace: 3 * time.Second}
				w.Handle("mail", 2, func(ctx context.Context, _ *Quest) (Raw, error) { return c.handler(ctx) })
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- w.Run(ctx) }()
				n := y.node(0)
				n.quest(1, nil)
				stop()
				time.Sleep(3*time.Second + c.after - time.Millisecond)
				if got := n.heard(TGoodbye); len(got) != 1 {
					t.Fatalf("%d GOODBYEs within the grace", len(got))
				}
				time.Sleep(2 * time.Millisecond)
				byes := n.heard(TGoodbye)
				if drain, _ := byes[len(byes)-1].Get("drain").Bool(); drain == c.back {
					t.Errorf("GOODBYEs are %x, given back: want %t", byes, c.back)
				}
				if err := <-ended; err != nil || y.count() != 1 {
					t.Errorf("%v after %d connections", err, y.count())
				}
				if d, f := len(n.heard(TDone)), len(n.heard(TFail)); d != c.done || f != c.fail {
					t.Errorf("%d DONEs and %d FAILs, want %d and %d", d, f, c.done, c.fail)
				}
			})
		})
	}
}

// partsAsked hangs up as a node does that has been asked to.
func partsAsked(n *fakeNode, e Envelope) (func(), bool) {
	drain, _ := e.P.Get("drain").Bool()
	return func() {
		n.ok(e, Fields{"inflight": 1})
		bye, _ := AppendFields(nil, TBye, PushRID, Fields{"code": "GOODBYE", "msg": "as asked"})
		n.send(bye)
		n.nc.Close()
	}, e.T == TGoodbye && !drain
}

// Leases of jobs that are to be given back live on until that can be said: a
// handler beside them may still have its last word.
func TestWorker_GraceOverBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeYard(t)
		y.answers(partsAsked)
		w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: quiet, Grace: time.Second}
		w.Handle("mail", 2, func(ctx context.Context, q *Quest) (Raw, error) {
			<-ctx.Done()
			if q.JID == "mail:1" {
				return nil, ctx.Err()
			}
			time.Sleep(1500 * time.Millisecond)
			return nil, nil
		})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		n := y.node(0)
		n.quest(1, func(q *Quest) { q.Beat = 100 * time.Millisecond })
		n.quest(2, nil)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if got := n.one(TDone).Get("jid"); textOf(got) != "mail:2" {
			t.Errorf("%x is done", got)
		}
		if got := len(n.heard(TFail)); got > 0 {
			t.Errorf("%d FAILs", got)
		}
		if byes, beats := len(n.heard(TGoodbye)), len(n.heard(TBeat)); byes != 2 || beats < 24 {
			t.Errorf("%d GOODBYEs, want 2; %d BEATs in 2.5 s, want 24", byes, beats)
		}
	})
}

// A worker without a node leaves its jobs to their leases, and does not hang.
func TestWorker_GraceOverAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeYard(t)
		w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: quiet, Grace: 3 * time.Second}
		w.Handle("mail", 2, until(nil))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		n := y.node(0)
		n.quest(1, nil)
		y.mu.Lock()
		y.refuse = func(string) error { return errors.New("nobody there") }
		y.mu.Unlock()
		n.nc.Close()
		stop()
		begin := time.Now()
		if err := <-ended; err != nil || time.Since(begin) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(begin))
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
