package overhop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var discardLog = slog.New(slog.DiscardHandler)

// runWorker runs a worker of "mail" with 2 credits in a synctest bubble until
// test returns.
func runWorker(t *testing.T, h Handler, test func(y *fakeCluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { runWorkerHere(t, h, test) })
}

// runWorkerHere is runWorker within the caller's bubble.
func runWorkerHere(t *testing.T, h Handler, test func(y *fakeCluster)) {
	y := newFakeCluster(t)
	w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: discardLog}
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

// waitHandler returns a handler that waits until done is closed or its context
// ends.
func waitHandler(done <-chan struct{}) Handler {
	return func(ctx context.Context, q *Quest) (Raw, error) {
		select {
		case <-done:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// dropAnswers closes the connection in place of an answer to a message of the
// given kind, the first times.
func dropAnswers(kind int64, times int) func(*fakeNode, Envelope) (func(), bool) {
	return func(n *fakeNode, e Envelope) (func(), bool) {
		if e.T != kind || times == 0 {
			return nil, false
		}
		times--
		n.countCredits(e)
		return func() { n.nc.Close() }, true
	}
}

// refuseAnswers answers messages of the given kind with a code, the first
// times.
func refuseAnswers(kind int64, code Code, times int) func(*fakeNode, Envelope) (func(), bool) {
	return func(n *fakeNode, e Envelope) (func(), bool) {
		if e.T != kind || times == 0 {
			return nil, false
		}
		times--
		n.countCredits(e)
		return func() { n.err(e, code) }, true
	}
}

func TestWorker(t *testing.T) {
	runWorker(t, echoHandler, func(y *fakeCluster) {
		n := y.node(0)
		n.expectBalance(2)
		n.quest(1, nil)
		if got := n.onlyMessage(TAck); textOf(got.Get("jid")) != "mail:1" {
			t.Errorf("ACK is %x", got)
		}
		if got, _ := n.onlyMessage(TDone).Get("result").Get("n").Int(); got != 1 {
			t.Errorf("result is %d", got)
		}
		n.expectBalance(2)
	})
}

// A worker that stops finishes its running jobs, over another connection if
// necessary, and takes no new ones.
func TestWorker_Stops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeCluster(t)
		done := make(chan struct{})
		w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: discardLog}
		w.Handle("mail", 2, waitHandler(done))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		n := y.node(0)
		n.quest(1, nil)
		stop()
		if drain, _ := n.onlyMessage(TGoodbye).Get("drain").Bool(); !drain {
			t.Error("GOODBYE without drain")
		}
		n.quest(2, nil)
		n.onlyMessage(TNack)
		n.nc.Close()
		time.Sleep(3 * time.Second)
		n = y.node(1)
		n.onlyMessage(TBeat)
		if got := n.messages(TSubscribe); len(got) > 0 {
			t.Error("a stopping worker subscribed")
		}
		close(done)
		n.onlyMessage(TDone)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// At the end of the grace handlers are cancelled. A result or error of their
// own is reported; the other jobs are released and none of them has failed.
func TestWorker_GraceExpires(t *testing.T) {
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
		"its own": {func(ctx context.Context) (Raw, error) { <-ctx.Done(); return nil, &StopError{StopWorker} }, 0, 1, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				y := newFakeCluster(t)
				y.setAnswer(closeOnGoodbye)
				w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: discardLog, ShutdownGrace: 3 * time.Second}
				w.Handle("mail", 2, func(ctx context.Context, _ *Quest) (Raw, error) { return c.handler(ctx) })
				ctx, stop := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- w.Run(ctx) }()
				n := y.node(0)
				n.quest(1, nil)
				stop()
				time.Sleep(3*time.Second + c.after - time.Millisecond)
				if got := n.messages(TGoodbye); len(got) != 1 {
					t.Fatalf("%d GOODBYEs within the grace", len(got))
				}
				time.Sleep(2 * time.Millisecond)
				byes := n.messages(TGoodbye)
				if drain, _ := byes[len(byes)-1].Get("drain").Bool(); drain == c.back {
					t.Errorf("GOODBYEs are %x, given back: want %t", byes, c.back)
				}
				if err := <-ended; err != nil || y.count() != 1 {
					t.Errorf("%v after %d connections", err, y.count())
				}
				if d, f := len(n.messages(TDone)), len(n.messages(TFail)); d != c.done || f != c.fail {
					t.Errorf("%d DONEs and %d FAILs, want %d and %d", d, f, c.done, c.fail)
				}
			})
		})
	}
}

// closeOnGoodbye answers a GOODBYE without drain as a node does, and closes the
// connection.
func closeOnGoodbye(n *fakeNode, e Envelope) (func(), bool) {
	drain, _ := e.P.Get("drain").Bool()
	return func() {
		n.ok(e, Fields{"inflight": 1})
		bye, _ := AppendFields(nil, TBye, PushRID, Fields{"code": "GOODBYE", "msg": "as asked"})
		n.send(bye)
		n.nc.Close()
	}, e.T == TGoodbye && !drain
}

// The leases of jobs that are to be released are renewed until the release,
// because another handler may still be returning.
func TestWorker_GraceExpires_LeasesKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeCluster(t)
		y.setAnswer(closeOnGoodbye)
		w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: discardLog, ShutdownGrace: time.Second}
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
		if got := n.onlyMessage(TDone).Get("jid"); textOf(got) != "mail:2" {
			t.Errorf("%x is done", got)
		}
		if got := len(n.messages(TFail)); got > 0 {
			t.Errorf("%d FAILs", got)
		}
		if byes, beats := len(n.messages(TGoodbye)), len(n.messages(TBeat)); byes != 2 || beats < 24 {
			t.Errorf("%d GOODBYEs, want 2; %d BEATs in 2.5 s, want 24", byes, beats)
		}
	})
}

// A worker without a node leaves its jobs to their leases and does not block.
func TestWorker_GraceExpires_Disconnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeCluster(t)
		w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: discardLog, ShutdownGrace: 3 * time.Second}
		w.Handle("mail", 2, waitHandler(nil))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.Run(ctx) }()
		n := y.node(0)
		n.quest(1, nil)
		y.setDialErr(func(string) error { return errors.New("no node") })
		n.nc.Close()
		stop()
		begin := time.Now()
		if err := <-ended; err != nil || time.Since(begin) != 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(begin))
		}
	})
}

// A permanent refusal ends the worker; others do not.
func TestWorker_Refused(t *testing.T) {
	for _, code := range []Code{
		CodeProtocolViolation, CodeQueueNotFound, CodeInvalidQueueName, CodeSystemQueue, CodeDuplicateSub, CodeNotImplemented,
		CodeUnauthorized,
	} {
		synctest.Test(t, func(t *testing.T) {
			y := newFakeCluster(t)
			codes := []Code{CodeUnavailable, CodeDraining, code}
			y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
				return func() { n.err(e, codes[min(n.index, 2)]) }, e.T != THello && e.T != TRegister
			})
			w := Worker{Nodes: []string{"n1"}, CreateQueues: true, Log: discardLog, Dial: y.dial}
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
		y := newFakeCluster(t)
		y.setAnswer(func(n *fakeNode, e Envelope) (func(), bool) {
			if e.T == THello && textOf(e.P.Get("token")) != "sesam" {
				t.Errorf("HELLO carries %x", e.P)
			}
			return func() { n.err(e, CodeUnauthorized); n.nc.Close() }, e.T == TRegister
		})
		w := Worker{Nodes: []string{"n1"}, Token: "sesam", Log: discardLog, Dial: y.dial}
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

// Each queue has its own handler and credits.
func TestWorker_Queues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		y := newFakeCluster(t)
		w := Worker{Nodes: []string{"n1"}, Dial: y.dial, Log: discardLog}
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
		n.expectBalance(2)
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

// A worker that reaches no node logs it at once and then at intervals, with the likely cause if a
// port closes the connection.
func TestWorker_LogsSeldomWithoutNode(t *testing.T) {
	for name, c := range map[string]struct {
		dial func(context.Context, string) (net.Conn, error)
		want string
	}{
		"nobody listens": {func(context.Context, string) (net.Conn, error) { return nil, errors.New("connection refused") }, "connection refused"},
		"the port speaks TLS": {func(context.Context, string) (net.Conn, error) {
			client, server := net.Pipe()
			go func() {
				server.Read(make([]byte, 4096)) // HELLO
				server.Close()
			}()
			return client, nil
		}, "if its port requires TLS, configure TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				w := Worker{Nodes: []string{"n1", "n2"}, Dial: c.dial, Log: slog.New(slog.NewTextHandler(&out, nil))}
				w.Handle("mail", 1, echoHandler)
				ctx, cancel := context.WithTimeout(t.Context(), 65*time.Second)
				defer cancel()
				if err := w.Run(ctx); err != nil {
					t.Error(err)
				}
				lines := strings.Split(strings.TrimSpace(out.String()), "\n")
				if len(lines) < 2 || len(lines) > 3 || !strings.Contains(lines[0], c.want) || !strings.Contains(lines[0], "attempts=1") {
					t.Errorf("in 65 s it logs %d lines:\n%s", len(lines), out.String())
				}
			})
		})
	}
}
