package bench

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
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
// must be one frame with the rid "1", and its answer must have the type want.
func (w *wire) trips(ctx context.Context, request []byte, want int64, end time.Time) (n int, err error) {
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
		if e.T != want || e.RID != "1" {
			return n, fmt.Errorf("answer t=%d with rid %q, want t=%d", e.T, e.RID, want)
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
