package bench

import (
	"context"
	"fmt"
	"net"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/internal/frame"
)

// wire is one connection to an Overhop server, as cheap as a client can be:
// whoever has it writes and reads frames. It is used by one goroutine at a
// time.
type wire struct {
	nc  net.Conn
	in  *frame.Reader
	out []byte // frames that flush writes
}

// dialWire connects, and no more.
func dialWire(ctx context.Context, addr string) (*wire, error) {
	d := net.Dialer{Timeout: patience}
	nc, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to node: %w", err)
	}
	return &wire{nc: nc, in: frame.NewReader(nc, overhop.DefaultFrameLimit)}, nil
}

// dialWorker connects and registers a client that takes QUESTs.
func dialWorker(ctx context.Context, addr string) (*wire, error) {
	w, err := dialWire(ctx, addr)
	if err != nil {
		return nil, err
	}
	w.nc.SetDeadline(time.Now().Add(patience))
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

// subscribe waits for the answer: the queue must have no jobs yet, or the first
// QUEST could be taken for it.
func (w *wire) subscribe(queue string, credits int) error {
	return w.ask(overhop.TSubscribe, overhop.AppendValue(nil, overhop.Fields{"q": queue, "credits": credits}), overhop.TOK)
}

// ask sends a request and takes the next frame for its answer.
func (w *wire) ask(t int64, p overhop.Raw, want int64) error {
	w.out = overhop.AppendMessage(w.out, t, "1", p)
	if err := w.flush(); err != nil {
		return err
	}
	e, err := w.next()
	if err == nil && (e.T != want || e.RID != "1") {
		err = fmt.Errorf("node answered t=%d to t=%d: %w", e.T, t, remoteError(e.P))
	}
	return err
}

func (w *wire) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.nc.Write(w.out)
	w.out = w.out[:0]
	return err
}

// next reads a message, which is valid until the next one.
func (w *wire) next() (overhop.Envelope, error) {
	payload, err := w.in.Next()
	if err != nil {
		return overhop.Envelope{}, fmt.Errorf("read from node: %w", err)
	}
	return overhop.ParseEnvelope(payload)
}

// trips makes requests in lock-step until the time is over, and counts them. A
// request is one frame whose rid is "1"; the answer must be a want.
func (w *wire) trips(ctx context.Context, request []byte, want int64, end time.Time) (n int, err error) {
	w.nc.SetDeadline(end.Add(patience))
	for time.Now().Before(end) && ctx.Err() == nil {
		w.out = append(w.out, request...)
		if err := w.flush(); err != nil {
			return n, err
		}
		e, err := w.next()
		if err != nil {
			return n, err
		}
		if e.T != want || e.RID != "1" {
			return n, fmt.Errorf("answer t=%d with rid %q, want t=%d", e.T, e.RID, want)
		}
		n++
	}
	return n, nil
}

// remoteError is what an ERR says.
func remoteError(p overhop.Raw) error {
	code, _ := p.Get("code").Str()
	text, _ := p.Get("msg").Str()
	return &overhop.RemoteError{Code: overhop.Code(code), Message: text}
}
