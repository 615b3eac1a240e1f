package overhop

import (
	"context"
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
