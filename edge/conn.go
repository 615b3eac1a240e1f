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
	link
	s          *Server
	out        *outbox
	worker     worker
	awaits     atomic.Int32 // jobs that are awaited; raised by the read loop only
	awaitGroup sync.WaitGroup
	readDone   atomic.Bool // the read loop has ended

	// Used by the read loop only.
	in      *frame.Reader
	cluster Session

	sessionMu sync.Mutex // guards session
	session   *overhop.Session
}

func (s *Server) newConn(ctx context.Context, nc net.Conn) *conn {
	c := &conn{
		s: s, link: link{linkLimits: &s.links, nc: nc, host: hostOf(nc.RemoteAddr())},
		in:      frame.NewReader(nc, s.cfg.Wire.MaxEnvelope),
		session: overhop.NewSession(s.lifetimes, time.Now()),
	}
	c.worker.conn, c.worker.ds = c, &s.deliveries
	c.in.SetGate(&c.link)
	c.session.Token, c.session.AllowExtension = string(s.cfg.Server.Token), !*s.cfg.Delivery.RequireHelloExt
	c.out = newOutbox(c.worker.congestionChanged)
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
			c.setIdleDeadline(c.worker.wid != "")
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
		c.s.mu.Lock()
		delete(c.s.anonymous, c)
		c.s.mu.Unlock()
		c.s.deliveries.addWorker(&c.worker, wid)
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

// textField returns a map with one text.
func textField(key, value string) overhop.Raw {
	return overhop.AppendStr(overhop.AppendStr(overhop.AppendMap(nil, 1), key), value)
}
