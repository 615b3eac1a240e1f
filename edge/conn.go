package edge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// conn is one client connection.
type conn struct {
	link
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

// newConn returns a connection for the client at the other end of netConn. It
// ends when ctx does.
func (s *Server) newConn(ctx context.Context, netConn net.Conn) *conn {
	c := &conn{
		link:    link{server: s, netConn: netConn, host: hostOf(netConn.RemoteAddr()), frames: s.anonymousFrames},
		in:      frame.NewReader(netConn, s.cfg.Wire.MaxEnvelope),
		session: overhop.NewSession(s.cfg.Wire.Session.lifetimes(), time.Now()),
	}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.worker.conn, c.worker.deliveries = c, s.deliveries
	c.out = newOutbox(c.worker.congestionChanged)
	c.in.SetGate(&c.link)
	c.session.Token, c.session.AllowExtension = string(s.cfg.Server.Token), !*s.cfg.Delivery.RequireHelloExt
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

// run serves the connection until it ends and then closes it. A second
// goroutine writes the outbox. When the read loop ends, the writer finishes what
// is in the outbox; when a write fails, the read loop is ended.
func (c *conn) run() {
	var writer sync.WaitGroup
	writer.Go(func() {
		flushed := c.write()
		if !flushed || !c.readDone.Load() {
			c.abort() // nothing can be answered any more
			c.cancel()
		}
	})
	err := c.read()
	c.releaseFrame()
	c.readDone.Store(true)
	c.out.finish()
	c.cancel()
	c.server.removeConn(c)
	writer.Wait()
	c.awaitGroup.Wait()
	c.linger(err)
	c.netConn.Close()
}

// read serves the client's messages and returns why it has ended. A panic ends the connection.
func (c *conn) read() (err error) {
	defer crash.Contain(c.server.log, crash.Overhop, func(cause error) { err = cause })
	if err := c.handshake(); err != nil {
		return err
	}
	return c.readLoop()
}

// write writes the outbox and reports whether all of it was written.
func (c *conn) write() (flushed bool) {
	defer crash.Contain(c.server.log, crash.Overhop, nil)
	return c.out.run(c.netConn, c.server.cfg.Limits.WriteTimeout)
}

// disconnected reports whether the connection is ending or its client has
// closed it, even if messages that the client sent before are unread.
func (c *conn) disconnected() bool { return c.ctx.Err() != nil || peerClosed(c.socket()) }

// errRefused ends a connection after the reason was sent to the client.
var errRefused = errors.New("client broke the protocol")

// readLoop handles requests in order until the client disconnects or violates
// the protocol, and returns the reason. A malformed frame is not answered. The
// stopwatch busy runs while a request is handled; the output collected for
// several requests is written once no further request has arrived.
func (c *conn) readLoop() error {
	for {
		if !c.in.Ready() {
			c.out.wakeWriter()
			c.setIdleDeadline(c.worker.id != "")
			c.busy.stop()
		}
		payload, err := c.in.Next()
		c.busy.start()
		if err != nil {
			c.logReadError(err)
			if tooLarge, ok := errors.AsType[*frame.TooLargeError](err); ok && isHTTP(tooLarge) && c.worker.id == "" {
				c.out.reply(func(b []byte) []byte { return append(b, httpAnswer...) })
				err = fmt.Errorf("%w: %w", errRefused, err)
			}
			return err
		}
		request, err := overhop.ParseEnvelope(payload)
		if err != nil {
			return err
		}
		if !c.out.waitPending(maxPending) {
			return net.ErrClosed
		}
		if err := c.step(request); err != nil {
			return err
		}
		c.releaseFrame()
	}
}

// step applies the protocol's rules to the client's next message and performs the
// action that they return. An error ends the connection.
func (c *conn) step(request overhop.Envelope) error {
	next := c.advance(func() overhop.Step { return c.session.Step(request, time.Now()) })
	switch next.Action {
	case overhop.ActionHandle:
		err := c.handle(request)
		if violation, ok := errors.AsType[*overhop.Violation](err); ok {
			return c.refuse(request.RID, overhop.CodeProtocolViolation, violation.Reason)
		}
		return err
	case overhop.ActionHi:
		c.out.reply(func(b []byte) []byte {
			return overhop.AppendHi(b, request.RID, c.session.Hello, c.server.cfg.Node, c.server.cfg.Wire.MaxEnvelope)
		})
	case overhop.ActionRegister:
		c.register(request.RID)
	default:
		return c.refuse(request.RID, next.Code, next.Message)
	}
	return nil
}

// advance calls step with the session locked. A panic of it, which ends the connection, leaves the
// session unlocked for those who go on to use the connection.
func (c *conn) advance(step func() overhop.Step) overhop.Step {
	c.sessionMu.Lock()
	defer c.sessionMu.Unlock()
	return step()
}

// register makes the client a worker, whose large frames share the workers' memory, and
// answers with the new worker id.
func (c *conn) register(rid string) {
	w, ds := &c.worker, c.server.deliveries
	c.server.mu.Lock()
	delete(c.server.anonymous, c)
	c.server.mu.Unlock()

	ds.mu.Lock()
	w.id, w.registered = uuid.NewString(), time.Now()
	w.subs, w.byQueue = make(map[string]*subscription), make(map[string]*subscription)
	w.jobs = make(map[*dispatch]struct{})
	ds.workers[w.id] = w
	ds.mu.Unlock()
	c.cluster = c.server.cluster.Session(w.id + " " + c.host)

	c.releaseFrame()
	c.frames = c.server.frames
	c.out.reply(func(b []byte) []byte { return overhop.AppendOK(b, rid, textField("wid", w.id)) })
}

// refuse sends an ERR after which the connection ends, and returns errRefused.
func (c *conn) refuse(rid string, code overhop.Code, message string) error {
	c.out.reply(func(b []byte) []byte { return overhop.AppendErr(b, rid, code, message, nil) })
	if n, ok := c.server.refusedLog.Allow(time.Now()); ok {
		c.server.log.Info("client refused", "peer", c.host, "code", string(code), "reason", message, "count", n)
	}
	return errRefused
}

// tick applies the protocol's time limits to a connection that has not
// registered.
func (c *conn) tick(now time.Time) {
	next := c.advance(func() overhop.Step { return c.session.Tick(now) })
	switch next.Action {
	case overhop.ActionClose:
		c.out.finish()
	case overhop.ActionPushRefusal:
		c.out.push(pushLimit, func(b []byte) []byte {
			return overhop.AppendErr(b, overhop.PushRID, next.Code, next.Message, nil)
		})
		c.out.finish()
	case overhop.ActionIdent:
		c.out.push(pushLimit, func(b []byte) []byte {
			return overhop.AppendIdent(b, c.server.cfg.Wire.Session.lifetimes().Ident, next.Deadline)
		})
	}
}

// delivery reports whether the client speaks the delivery extension. It is
// constant once the client has registered.
func (c *conn) delivery() bool { return c.session.Hello.Delivery }

// acceptsJobs reports whether the client may be sent QUESTs.
func (c *conn) acceptsJobs() bool { return c.delivery() || !*c.server.cfg.Delivery.RequireHelloExt }

// pushFields pushes a message of type t, unless the client does not speak the
// delivery extension. It must not be used for frequent messages: it cuts off a
// client that does not read.
func (c *conn) pushFields(t int64, payload overhop.Fields) {
	if !c.acceptsJobs() {
		return
	}
	full := c.out.push(pushLimit, func(b []byte) []byte {
		b, _ = overhop.AppendFields(b, t, overhop.PushRID, payload)
		return b
	})
	if full {
		c.abort()
	}
}

// bye sends BYE to a registered client that speaks the delivery extension, and
// closes the connection once everything is written.
func (c *conn) bye(code, message string) {
	c.sessionMu.Lock()
	sendBye := c.session.Registered() && c.delivery()
	c.sessionMu.Unlock()
	if sendBye {
		c.pushFields(overhop.TBye, overhop.Fields{"code": code, "msg": message})
	}
	c.out.finish()
}

// textField returns an encoded map with one text.
func textField(key, value string) overhop.Raw {
	b := make([]byte, 0, len(key)+len(value)+8)
	return overhop.AppendStr(overhop.AppendStr(overhop.AppendMap(b, 1), key), value)
}
