package rrq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"yardmaster/internal/frame"
)

// MaxInFlight is how many requests of one connection run at once; the next one
// is refused.
const MaxInFlight = 64

// Handler runs one request. Its ctx ends with the request's deadline, a cancel,
// or the connection; [context.Cause] tells which. Ids left empty in the outcome
// are filled in; an empty Status is an error, or what ended ctx.
type Handler func(ctx context.Context, r *Request) Outcome

// Why a handler's ctx ended, besides its deadline.
var (
	ErrCancelled    = errors.New("request cancelled")
	ErrDisconnected = errors.New("connection of the request closed")
	ErrStopped      = errors.New("runner is stopping")
)

// Serve is a runner: it answers requests on every connection that ln accepts,
// until ctx ends. It returns nil then, when all handlers have returned, and the
// listener's error otherwise. A handler that ignores its ctx keeps it waiting.
func Serve(ctx context.Context, ln net.Listener, h Handler) error {
	s := &server{handler: h, calls: make(map[*call]struct{}), conns: make(map[net.Conn]struct{})}
	stop := context.AfterFunc(ctx, func() {
		_ = ln.Close() // its Accept then fails, which ends the loop
		s.stop()
	})
	var err error
	for {
		var nc net.Conn
		if nc, err = ln.Accept(); err != nil {
			break
		}
		if !s.add(nc) {
			break
		}
		s.conversations.Go(func() { s.converse(nc) })
	}
	if stop() {
		s.stop()
	}
	s.conversations.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("accept: %w", err)
}

type server struct {
	handler       Handler
	conversations sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	conns   map[net.Conn]struct{}
	calls   map[*call]struct{} // in flight, over all connections: a cancel comes on another one
}

// call is one request in flight.
type call struct {
	request, job string
	cancel       context.CancelCauseFunc
}

func (s *server) add(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		_ = nc.Close() // nothing was said on it
		return false
	}
	s.conns[nc] = struct{}{}
	return true
}

// stop cancels everything; the connections' readers then end too, while the
// handlers' last answers can still be written.
func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for c := range s.calls {
		c.cancel(ErrStopped)
	}
	for nc := range s.conns {
		closeRead(nc)
	}
}

func closeRead(nc net.Conn) {
	if tcp, ok := nc.(*net.TCPConn); ok {
		_ = tcp.CloseRead() // the connection may have ended by itself
		return
	}
	_ = nc.Close()
}

// peer is one connection.
type peer struct {
	*server
	nc       net.Conn
	handlers sync.WaitGroup

	mu       sync.Mutex // of what follows, and of writing
	inFlight map[*call]struct{}
	out      []byte
}

// converse serves one connection to its end. What it still has in flight then
// is cancelled: nobody could be told how it ended.
func (s *server) converse(nc net.Conn) {
	p := &peer{server: s, nc: nc, inFlight: make(map[*call]struct{})}
	frames := frame.NewReader(nc, MaxFrame)
	for {
		payload, err := frames.Next()
		if err != nil {
			break
		}
		m, err := decode(payload)
		if err != nil || m.outcome != nil {
			break
		}
		if m.cancel != nil {
			s.cancel(m.cancel, m.version)
			continue
		}
		p.accept(m.request, m.version)
	}
	p.mu.Lock()
	for c := range p.inFlight {
		c.cancel(ErrDisconnected)
	}
	p.mu.Unlock()
	p.handlers.Wait()
	s.mu.Lock()
	delete(s.conns, nc)
	s.mu.Unlock()
	_ = nc.Close() // all that could be written has been
}

func (s *server) cancel(c *Cancel, version string) {
	if version != Version {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for running := range s.calls {
		if c.RequestID == running.request || c.RequestID == "" && c.JobID == running.job {
			running.cancel(ErrCancelled)
		}
	}
}

// accept starts a request, or answers why not.
func (p *peer) accept(r *Request, version string) {
	if version != Version {
		p.answer(r, Outcome{Status: Error, Fault: &Fault{Message: "Unsupported protocol version"}})
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &call{request: r.RequestID, job: r.JobID, cancel: cancel}
	p.mu.Lock()
	full := len(p.inFlight) >= MaxInFlight
	if !full {
		p.inFlight[c] = struct{}{}
	}
	p.mu.Unlock()
	if full {
		cancel(nil)
		p.answer(r, Outcome{Status: Error, Fault: &Fault{Message: "Runner busy: too many in-flight requests"}})
		return
	}
	p.server.mu.Lock()
	p.calls[c] = struct{}{}
	if p.stopped {
		cancel(ErrStopped)
	}
	p.server.mu.Unlock()
	p.handlers.Go(func() { p.run(ctx, c, r) })
}

func (p *peer) run(ctx context.Context, c *call, r *Request) {
	if until := r.Context.Deadline; !until.IsZero() {
		var release context.CancelFunc
		ctx, release = context.WithDeadline(ctx, until)
		defer release()
	}
	var o Outcome
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		o = Outcome{Status: Timeout, Fault: &Fault{Message: "Job deadline exceeded", Type: TimedOut}}
	} else {
		o = p.handler(ctx, r)
	}
	if o.Status == "" {
		o.Status, o.Fault = ended(ctx, o.Fault)
	}
	p.mu.Lock()
	delete(p.inFlight, c)
	p.mu.Unlock()
	p.server.mu.Lock()
	delete(p.calls, c)
	p.server.mu.Unlock()
	c.cancel(nil)
	if !errors.Is(context.Cause(ctx), ErrDisconnected) {
		p.answer(r, o)
	}
}

// ended is the outcome of a handler that left it open.
func ended(ctx context.Context, f *Fault) (string, *Fault) {
	switch {
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return Timeout, &Fault{Message: "Job execution timed out", Type: TimedOut}
	case ctx.Err() != nil:
		return Error, &Fault{Message: "Job cancelled", Type: Cancelled}
	case f != nil:
		return Error, f
	}
	return Error, &Fault{Message: "Job failed"}
}

// answer writes an outcome. A result that no frame can carry becomes an error,
// so that the yard need not wait for the deadline.
func (p *peer) answer(r *Request, o Outcome) {
	if o.JobID == "" {
		o.JobID = r.JobID
	}
	if o.RequestID == "" {
		o.RequestID = r.RequestID
	}
	if len(o.Result) > 0 && !json.Valid(o.Result) {
		o = Outcome{JobID: o.JobID, RequestID: o.RequestID, Status: Error, Fault: &Fault{Message: "Result is not JSON"}}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b, err := appendOutcome(p.out[:0], &o)
	if err != nil {
		o = Outcome{JobID: o.JobID, RequestID: o.RequestID, Status: Error, Fault: &Fault{Message: "Result too large: " + err.Error()}}
		if b, err = appendOutcome(p.out[:0], &o); err != nil {
			return // ids of 16 MiB: whoever sent them does not wait for an answer
		}
	}
	if cap(b) <= 64<<10 {
		p.out = b
	}
	if _, err := p.nc.Write(b); err != nil && !errors.Is(err, os.ErrClosed) {
		_ = p.nc.Close() // the reader sees it and ends the conversation
	}
}
