package rrq

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// MaxInFlight is the number of requests that one connection may run at once.
// Further requests are refused.
const MaxInFlight = 64

// Handler runs one request. ctx ends with the request's deadline, a cancel, or
// the connection; [context.Cause] returns which. Ids that are empty in the
// outcome are filled in. An empty Status means an error, or the reason for
// which ctx ended.
type Handler func(ctx context.Context, r *Request) Outcome

// Causes of a handler's ctx, in addition to [context.DeadlineExceeded].
var (
	ErrCancelled    = errors.New("request cancelled")
	ErrDisconnected = errors.New("connection of the request closed")
	ErrStopped      = errors.New("runner is stopping")
)

// Serve runs a runner: it answers requests on every connection that ln accepts
// until ctx ends. It then cancels the handlers, returns nil when all of them
// have returned, and so blocks as long as a handler ignores its ctx. Otherwise
// it returns the listener's error. It closes ln.
func Serve(ctx context.Context, ln net.Listener, h Handler) error {
	s := &server{handler: h, calls: make(map[*call]struct{}), conns: make(map[net.Conn]struct{})}
	stop := context.AfterFunc(ctx, func() {
		_ = ln.Close() // makes Accept fail, which ends the loop
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
		s.connLoops.Go(func() { s.serveConn(nc) })
	}
	if stop() {
		s.stop()
	}
	s.connLoops.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("accept: %w", err)
}

type server struct {
	handler   Handler
	connLoops sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	conns   map[net.Conn]struct{}
	calls   map[*call]struct{} // pending requests of all connections, because a cancel arrives on another one
}

// call is one pending request.
type call struct {
	conn             *serverConn
	requestID, jobID string
	cancel           context.CancelCauseFunc
}

// add registers an accepted connection. If the server has stopped, it closes the
// connection and returns false.
func (s *server) add(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		_ = nc.Close() // nothing was received on it
		return false
	}
	s.conns[nc] = struct{}{}
	return true
}

// stop cancels all requests and stops reading from the connections. The answers
// of the handlers can still be written.
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

// serverConn is one connection.
type serverConn struct {
	*server
	nc       net.Conn
	handlers sync.WaitGroup
	inFlight int // number of pending requests; guarded by server.mu

	writing sync.Mutex // held while an answer is written; guards out
	out     []byte
}

// serveConn serves one connection until it ends or receives something that only
// a runner may send, and then cancels its pending requests, which can no longer
// be answered. It returns when their handlers have returned.
func (s *server) serveConn(nc net.Conn) {
	sc := &serverConn{server: s, nc: nc}
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
		// A runner that was stopped (SIGSTOP) reads requests whose node has given them up: another runner
		// may have run the job meanwhile.
		if n, err := peek(nc); frames.Buffered() == 0 && n == 0 && err == nil {
			sc.answer(m.request, Outcome{Status: Error, Fault: &Fault{Message: "Job cancelled", Type: Cancelled}})
			continue
		}
		sc.startRequest(m.request, m.version)
	}
	s.mu.Lock()
	for c := range s.calls {
		if c.conn == sc {
			c.cancel(ErrDisconnected)
		}
	}
	s.mu.Unlock()
	sc.handlers.Wait()
	s.mu.Lock()
	delete(s.conns, nc)
	s.mu.Unlock()
	_ = nc.Close() // everything that could be written was written
}

// cancel cancels the pending requests that c names, on any connection. A cancel
// of another protocol version is ignored.
func (s *server) cancel(c *Cancel, version string) {
	if version != Version {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for running := range s.calls {
		if c.RequestID == running.requestID || c.RequestID == "" && c.JobID == running.jobID {
			running.cancel(ErrCancelled)
		}
	}
}

// startRequest starts the handler of a request, or refuses the request with an
// answer if it has another protocol version or the connection has MaxInFlight
// requests.
func (sc *serverConn) startRequest(r *Request, version string) {
	if version != Version {
		sc.answer(r, Outcome{Status: Error, Fault: &Fault{Message: "Unsupported protocol version"}})
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &call{conn: sc, requestID: r.RequestID, jobID: r.JobID, cancel: cancel}
	sc.mu.Lock()
	full := sc.inFlight >= MaxInFlight
	if !full {
		sc.inFlight++
		sc.calls[c] = struct{}{}
	}
	if sc.stopped {
		cancel(ErrStopped)
	}
	sc.mu.Unlock()
	if full {
		cancel(nil)
		sc.answer(r, Outcome{Status: Error, Fault: &Fault{Message: "Runner busy: too many in-flight requests"}})
		return
	}
	sc.handlers.Go(func() { sc.runHandler(ctx, c, r) })
}

// runHandler calls the handler, unless the deadline has passed, and answers the
// request, unless its connection has ended.
func (sc *serverConn) runHandler(ctx context.Context, c *call, r *Request) {
	if until := r.Context.Deadline; !until.IsZero() {
		var release context.CancelFunc
		ctx, release = context.WithDeadline(ctx, until)
		defer release()
	}
	var o Outcome
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		o = Outcome{Status: Timeout, Fault: &Fault{Message: "Job deadline exceeded", Type: TimedOut}}
	} else {
		o = sc.handler(ctx, r)
	}
	if o.Status == "" {
		o.Status, o.Fault = defaultStatus(ctx, o.Fault)
	}
	sc.mu.Lock()
	sc.inFlight--
	delete(sc.calls, c)
	sc.mu.Unlock()
	c.cancel(nil)
	if !errors.Is(context.Cause(ctx), ErrDisconnected) {
		sc.answer(r, o)
	}
}

// defaultStatus returns the status and fault for a handler that left the status
// empty: the reason for which ctx ended, or else an error with the handler's
// fault f.
func defaultStatus(ctx context.Context, f *Fault) (string, *Fault) {
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

// answer writes an outcome. A result that does not fit into a frame becomes an
// error, so that the node does not have to wait for the deadline.
func (sc *serverConn) answer(r *Request, o Outcome) {
	if o.JobID == "" {
		o.JobID = r.JobID
	}
	if o.RequestID == "" {
		o.RequestID = r.RequestID
	}
	if len(o.Result) > 0 && !json.Valid(o.Result) {
		o = Outcome{JobID: o.JobID, RequestID: o.RequestID, Status: Error, Fault: &Fault{Message: "Result is not JSON"}}
	}
	sc.writing.Lock()
	defer sc.writing.Unlock()
	b, err := appendOutcome(sc.out[:0], &o)
	if err != nil {
		o = Outcome{JobID: o.JobID, RequestID: o.RequestID, Status: Error, Fault: &Fault{Message: "Result too large: " + err.Error()}}
		if b, err = appendOutcome(sc.out[:0], &o); err != nil {
			return // ids of 16 MiB: the client cannot expect an answer
		}
	}
	if cap(b) <= maxKeptBuffer {
		sc.out = b
	}
	if _, err := sc.nc.Write(b); err != nil && !errors.Is(err, os.ErrClosed) {
		_ = sc.nc.Close() // makes the reader end the connection
	}
}
