package edge

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// conn is one client connection.
type conn struct {
	s          *Server
	nc         net.Conn // may be a *tls.Conn
	host       string   // the client's address without its port
	ctx        context.Context
	cancel     context.CancelFunc
	out        *outbox
	awaitGroup sync.WaitGroup
	busy       stopwatch     // runs while a request is handled and nothing is read
	writerDone chan struct{} // closed when nothing can be written any more
	readDone   atomic.Bool   // the read loop has ended

	// Used by the read loop only.
	in              *frame.Reader
	cluster         Session
	scratch         []byte // buffer for an answer's payload
	closeAfterReply bool   // GOODBYE was sent without drain: close once it is answered
	frameMemory     int    // bytes of Server.frameBudget that the current frame takes
	frameBegun      bool   // the current frame is incomplete and has a read deadline

	sessionMu sync.Mutex // guards session
	session   *overhop.Session

	// Guarded by Server.mu.
	wid        string // empty: not registered
	subs       map[string]*subscription
	byQueue    map[string]*subscription
	jobs       map[*dispatch]struct{} // dispatched to this worker and not settled
	awaitCount int                    // AWAITs that are pending
	draining   bool                   // GOODBYE was received: no more jobs
	closed     bool

	stallCount   int  // number of reasons to treat the worker as stalled
	leaseExpired bool // one of them: a job's lease expired
	resumed      bool // it was reported that the worker resumed jobs of another connection
}

func (s *Server) newConn(ctx context.Context, nc net.Conn) *conn {
	c := &conn{
		s: s, nc: nc, host: hostOf(nc.RemoteAddr()),
		in:         frame.NewReader(nc, s.cfg.Wire.MaxEnvelope),
		writerDone: make(chan struct{}),
		session:    overhop.NewSession(s.lifetimes, time.Now()),
	}
	c.in.SetGate(c)
	c.session.RequireToken(string(s.cfg.Server.Token))
	if !*s.cfg.Delivery.RequireHelloExt {
		c.session.AllowExtension()
	}
	c.out = newOutbox(func() { s.congestionChanged(c) })
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

// hostOf returns an address without its port. An IPv4 address within IPv6 is
// returned as IPv4, so that a host is counted once however it connects.
func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}

// run serves the connection until it ends and then closes it.
func (c *conn) run() {
	var writer sync.WaitGroup
	writer.Go(func() {
		defer close(c.writerDone)
		flushed := c.out.run(c.nc, c.s.cfg.Limits.WriteTimeout)
		if !flushed || !c.readDone.Load() {
			c.abort() // nothing can be answered any more
			c.cancel()
		}
	})
	err := c.handshake()
	if err == nil {
		err = c.readLoop()
	}
	c.releaseFrame()
	c.readDone.Store(true)
	c.out.finish()
	c.cancel()
	c.s.removeConn(c)
	writer.Wait()
	c.awaitGroup.Wait()
	c.linger(err)
	c.nc.Close()
}

// errRefused ends a connection after the reason was sent to the client.
var errRefused = errors.New("client broke the protocol")

// readLoop handles requests in order until the client disconnects or violates
// the protocol. Malformed frames end it without an answer.
func (c *conn) readLoop() error {
	c.in.SetLimit(overhop.MinFrameLimit) // until the client has registered
	for {
		if !c.in.Ready() {
			c.out.wakeWriter() // the input is used up: write what was collected
			c.setIdleDeadline()
			c.busy.stop()
		}
		payload, err := c.in.Next()
		c.busy.start()
		if err != nil {
			c.logUnexpectedTLS(err)
			c.logSlowFrame(err)
			return err
		}
		e, err := overhop.ParseEnvelope(payload)
		if err != nil {
			return err
		}
		if !c.out.waitPending(maxPending) {
			return net.ErrClosed
		}
		if err := c.step(e); err != nil {
			return err
		}
		c.releaseFrame()
	}
}

// step applies the session's rules to a message and performs the action they
// return.
func (c *conn) step(e overhop.Envelope) error {
	c.sessionMu.Lock()
	step := c.session.Step(e, time.Now())
	c.sessionMu.Unlock()
	switch step.Action {
	case overhop.ActionHandle:
		return c.handle(e)
	case overhop.ActionHi:
		c.out.reply(func(b []byte) []byte {
			return overhop.AppendHi(b, e.RID, c.session.Hello.Delivery, c.s.cfg.Node, c.s.cfg.Wire.MaxEnvelope)
		})
	case overhop.ActionRegister:
		wid := uuid.NewString()
		c.cluster = c.s.cluster.Session()
		c.s.registerWorker(c, wid)
		c.in.SetLimit(c.s.cfg.Wire.MaxEnvelope)
		c.out.reply(func(b []byte) []byte { return overhop.AppendOK(b, e.RID, textField("wid", wid)) })
	default:
		return c.refuse(e.RID, step.Code, step.Message)
	}
	return nil
}

// refuse sends an ERR after which the connection ends, and returns errRefused.
func (c *conn) refuse(rid string, code overhop.Code, message string) error {
	c.out.reply(func(b []byte) []byte { return overhop.AppendErr(b, rid, code, message, nil) })
	if n, ok := c.s.refusedLog.Allow(time.Now()); ok {
		c.s.log.Info("client refused", "peer", c.host, "code", string(code), "reason", message, "count", n)
	}
	return errRefused
}

// tick applies the session's time limits to a connection that is not
// registered.
func (c *conn) tick(now time.Time) {
	c.sessionMu.Lock()
	step := c.session.Tick(now)
	c.sessionMu.Unlock()
	switch step.Action {
	case overhop.ActionClose:
		c.out.finish()
	case overhop.ActionPushRefusal:
		c.out.push(pushLimit, func(b []byte) ([]byte, error) {
			return overhop.AppendErr(b, overhop.PushRID, step.Code, step.Message, nil), nil
		})
		c.out.finish()
	case overhop.ActionIdent:
		c.out.push(pushLimit, func(b []byte) ([]byte, error) { return overhop.AppendIdent(b, c.s.lifetimes.Ident, step.Deadline), nil })
	}
}

// delivery reports whether the client speaks the delivery extension. It is
// constant once the client has registered.
func (c *conn) delivery() bool { return c.session.Hello.Delivery }

// acceptsJobs reports whether the client may be sent QUESTs.
func (c *conn) acceptsJobs() bool { return c.delivery() || !*c.s.cfg.Delivery.RequireHelloExt }

// pushFields pushes a message, unless the client does not speak the delivery
// extension. It must not be used for frequent messages: it cuts off a client
// that does not read.
func (c *conn) pushFields(t int64, p overhop.Fields) {
	if !c.acceptsJobs() {
		return
	}
	result, _ := c.out.push(pushLimit, func(b []byte) ([]byte, error) {
		b, _ = overhop.AppendFields(b, t, overhop.PushRID, p)
		return b, nil
	})
	if result == pushFull {
		c.abort() // the client does not read
	}
}

// bye sends BYE to a client that speaks the extension, and closes the
// connection once everything is written.
func (c *conn) bye(code, message string) {
	c.sessionMu.Lock()
	extension := c.session.Registered() && c.session.Hello.Delivery
	c.sessionMu.Unlock()
	if extension {
		c.pushFields(overhop.TBye, overhop.Fields{"code": code, "msg": message})
	}
	c.out.finish()
}

func textField(key, value string) overhop.Raw {
	return overhop.AppendStr(overhop.AppendStr(overhop.AppendMap(nil, 1), key), value)
}
