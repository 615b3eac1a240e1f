package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
	"github.com/yardmaster-dev/yardmaster/internal/freeport"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// wire is a minimal connection to an Overhop server: its user writes and reads frames
// directly. It must be used by one goroutine at a time.
type wire struct {
	nc  net.Conn
	in  *frame.Reader
	out []byte // frames to be written by flush
}

// dialWire connects without registering.
func dialWire(ctx context.Context, addr string) (*wire, error) {
	d := net.Dialer{Timeout: waitTimeout}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to node: %w", err)
	}
	return &wire{nc: nc, in: frame.NewReader(nc, overhop.DefaultFrameLimit)}, nil
}

// dialWorker connects and registers with the delivery extension.
func dialWorker(ctx context.Context, addr string) (*wire, error) {
	w, err := dialWire(ctx, addr)
	if err != nil {
		return nil, err
	}
	w.nc.SetDeadline(time.Now().Add(waitTimeout))
	hello := overhop.AppendValue(nil, overhop.Fields{"client": "bench", "ext": []string{overhop.Delivery}})
	if err = w.ask(overhop.THello, hello, overhop.THi); err == nil {
		err = w.ask(overhop.TRegister, overhop.EmptyMap, overhop.TOK)
	}
	if err != nil {
		w.nc.Close()
		return nil, err
	}
	w.nc.SetDeadline(time.Time{})
	return w, nil
}

// subscribe subscribes and waits for the answer. The queue must be empty, because a
// QUEST must not arrive before the answer.
func (w *wire) subscribe(queue string, credits int) error {
	return w.ask(overhop.TSubscribe, overhop.AppendValue(nil, overhop.Fields{"q": queue, "credits": credits}), overhop.TOK)
}

// ask sends a request and takes the next frame as its answer.
func (w *wire) ask(t int64, p overhop.Raw, answer int64) error {
	w.out = overhop.AppendMessage(w.out, t, "1", p)
	if err := w.flush(); err != nil {
		return err
	}
	e, err := w.next()
	if err == nil && (e.T != answer || e.RID != "1") {
		err = fmt.Errorf("node answered t=%d to t=%d: %w", e.T, t, remoteError(e.P))
	}
	return err
}

// flush writes the buffered frames.
func (w *wire) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.nc.Write(w.out)
	w.out = w.out[:0]
	return err
}

// next reads a message, which is valid until the next call.
func (w *wire) next() (overhop.Envelope, error) {
	payload, err := w.in.Next()
	if err != nil {
		return overhop.Envelope{}, fmt.Errorf("read from node: %w", err)
	}
	return overhop.ParseEnvelope(payload)
}

// trips sends requests one at a time until end, and returns their number. The request
// must be one frame with the rid "1", and its answer must have the type answer.
func (w *wire) trips(ctx context.Context, request []byte, answer int64, end time.Time) (n int, err error) {
	w.nc.SetDeadline(end.Add(waitTimeout))
	for time.Now().Before(end) && ctx.Err() == nil {
		w.out = append(w.out, request...)
		if err := w.flush(); err != nil {
			return n, err
		}
		e, err := w.next()
		if err != nil {
			return n, err
		}
		if e.T != answer || e.RID != "1" {
			return n, fmt.Errorf("answer t=%d with rid %q, want t=%d", e.T, e.RID, answer)
		}
		n++
	}
	return n, nil
}

// remoteError returns the error in the payload of an ERR.
func remoteError(p overhop.Raw) error {
	code, _ := p.Get("code").Str()
	text, _ := p.Get("msg").Str()
	return &overhop.RemoteError{Code: overhop.Code(code), Message: text}
}

// ping and pong are the messages of the echo floor. The process that answers only
// counts bytes and does not parse them.
var (
	ping = overhop.AppendMessage(nil, overhop.TPing, "1", overhop.EmptyMap)
	pong = overhop.AppendPong(nil, "1", time.Date(2026, 1, 1, 0, 0, 0, 123456789, time.UTC))
)

// echo listens on addr and answers every ping with the same pong until ctx ends.
func echo(ctx context.Context, addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("listen for pings: %w", err)
	}
	var open sync.WaitGroup
	defer open.Wait()
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	for {
		nc, err := ln.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		open.Go(func() {
			defer context.AfterFunc(ctx, func() { nc.Close() })()
			defer nc.Close()
			request := make([]byte, len(ping))
			for {
				if _, err := io.ReadFull(nc, request); err != nil {
					return
				}
				if _, err := nc.Write(pong); err != nil {
					return
				}
			}
		})
	}
}

// echoPeer is the process of the echo floor.
type echoPeer struct {
	*procs.Process
	addr string
}

// startEcho starts an echo process and waits until it listens.
func startEcho(t *task, binary string) *echoPeer {
	addr := must.Get(freeport.Addresses(1))[0]
	e := &echoPeer{t.start("echo", t.dir, nil, peerOptions{Name: "echo", Echo: addr}.command(binary)), addr}
	t.await("the echo listens", func() error {
		w, err := dialWire(t, addr)
		if err == nil {
			w.nc.Close()
		}
		return err
	}, e.Process)
	return e
}

func (e *echoPeer) dial(ctx context.Context) (*wire, error) { return dialWire(ctx, e.addr) }

// pingPong measures round trips per second over n connections, each with one request
// at a time.
func pingPong(t *task, n int, d time.Duration, cpu func() time.Duration, dial func(context.Context) (*wire, error)) round {
	var wires []*wire
	defer func() {
		for _, w := range wires {
			w.nc.Close()
		}
	}()
	for range n {
		w := must.Get(dial(t))
		wires = append(wires, w)
	}
	counts, faults := make([]int, n), make([]error, n)
	m := startMeter(cpu)
	began := time.Now()
	var callers sync.WaitGroup
	for i, w := range wires {
		callers.Go(func() { counts[i], faults[i] = w.trips(t, ping, overhop.TPong, began.Add(d)) })
	}
	callers.Wait()
	took := time.Since(began)
	sum := 0
	for _, count := range counts {
		sum += count
	}
	must.Do(errors.Join(faults...))
	return m.end(round{value: float64(sum) / took.Seconds()})
}

// overhopConn enqueues any number of jobs at a time over one connection.
type overhopConn struct{ *overhop.Client }

// openOverhopConns opens n connections, spread over nodes.
func openOverhopConns(t *task, nodes []*procs.Node, n int) []overhopConn {
	running, stop := context.WithCancel(t)
	var clients sync.WaitGroup
	t.cleanup(func() {
		stop()
		clients.Wait()
	})
	conns := make([]overhopConn, n)
	for i := range conns {
		c := must.Get(overhop.Dial(t, nodes[i%len(nodes)].Edge, overhop.Options{Name: "bench"}))
		clients.Go(func() { _ = c.Run(running) }) // its requests end with the same error
		conns[i] = overhopConn{c}
	}
	return conns
}

// submit enqueues job i. If the load has keys, it repeats the request when the node is
// temporarily unavailable.
func (c overhopConn) submit(l *load, i int, due time.Duration, done func(error)) {
	payload := func(b []byte) []byte { return appendEnqueue(b, l.subject, l.function, l.key, i, int64(due)) }
	c.Go(overhop.TEnqueue, payload, func(_ overhop.Raw, err error) {
		if l.key != "" && overhop.ErrorCode(err) == overhop.CodeUnavailable {
			l.repeated.Add(1)
			time.AfterFunc(undecidedDelay, func() { c.submit(l, i, due, done) })
			return
		}
		done(err)
	})
}

// repeat does nothing: every ENQUEUE is answered.
func (c overhopConn) repeat(time.Duration) int { return 0 }

// appendEnqueue appends the payload of the ENQUEUE of job i, with a body of the same
// size as in the floors.
func appendEnqueue(b []byte, queue, function, key string, i int, due int64) []byte {
	fields := 2
	for _, optional := range []string{function, key} {
		if optional != "" {
			fields++
		}
	}
	b = overhop.AppendMap(b, fields)
	if function != "" {
		b = overhop.AppendStr(overhop.AppendStr(b, "fn"), function)
	}
	b = overhop.AppendStr(b, "job_payload")
	body := len(b)
	b = overhop.AppendInt(overhop.AppendStr(overhop.AppendMap(b, 2), "due"), due)
	b = overhop.AppendStr(b, "pad")
	const head = 2 // length of the header of a long string
	b = overhop.AppendStr(b, padding[:bodySize-head-(len(b)-body)])
	if key != "" {
		b = overhop.AppendStr(overhop.AppendStr(b, "key"), key+strconv.Itoa(i))
	}
	return overhop.AppendStr(overhop.AppendStr(b, "q"), queue)
}

// padding and paddingText are text to fill the bodies of jobs with.
var (
	padding     = bytes.Repeat([]byte("x"), bodySize)
	paddingText = string(padding)
)
