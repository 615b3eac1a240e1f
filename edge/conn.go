package edge

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"yardmaster/edge/overhop"
	"yardmaster/internal/frame"
)

// conn is one connection.
type conn struct {
	s      *Server
	nc     net.Conn // may be a *tls.Conn
	host   string   // the client's address without its port
	ctx    context.Context
	cancel context.CancelFunc
	out    *outbox
	awaits sync.WaitGroup
	busy   stopwatch     // runs while nothing is read, by our own doing
	mute   chan struct{} // closed once nothing is written any more
	read   atomic.Bool   // the read loop has ended

	// The read loop's own.
	in      *frame.Reader
	yard    Session
	scratch []byte // an answer's payload while it is built
	parting bool   // said GOODBYE and waits for nothing
	large   int    // what the frame in hand takes of Server.frames, in bytes
	hurried bool   // a frame has begun, and its time runs

	order   sync.Mutex // guards session
	session *overhop.Session

	// Guarded by Server.mu.
	wid     string // empty: not registered
	subs    map[string]*subscription
	byQueue map[string]*subscription
	jobs    map[*dispatch]struct{} // in this worker's hands, until settled
	waiting int                    // AWAITs under way
	leaving bool                   // said GOODBYE: no more jobs
	gone    bool

	stalls   int  // reasons why it is taken for stalled
	overdue  bool // one of them: a lease ran out in its hands
	cameBack bool // said that it goes on with what another connection had
}

func (s *Server) newConn(ctx context.Context, nc net.Conn) *conn {
	c := &conn{
		s: s, nc: nc, host: hostOf(nc.RemoteAddr()),
		in:      frame.NewReader(nc, s.cfg.Wire.MaxEnvelope),
		mute:    make(chan struct{}),
		session: overhop.NewSession(s.cfg.Wire.Session.lifetimes(), time.Now()),
	}
	c.in.SetGate(c)
	c.session.RequireToken(string(s.cfg.Server.Token))
	if !*s.cfg.Delivery.RequireHelloExt {
		c.session.AllowExtension()
	}
	c.out = newOutbox(func() { s.noteStuffed(c) })
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

// hostOf is an address without its port. IPv4 within IPv6 reads like IPv4, so
// that a host counts as one whichever way it comes.
func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil {
		return a.String()
	}
	return host
}

// run is the connection's life.
func (c *conn) run() {
	var writer sync.WaitGroup
	writer.Go(func() {
		defer close(c.mute)
		written := c.out.run(c.nc, c.s.cfg.Limits.WriteTimeout)
		if !written || !c.read.Load() {
			c.cut() // nothing can be answered any more
			c.cancel()
		}
	})
	err := c.secure()
	if err == nil {
		err = c.readLoop()
	}
	c.dropFrame()
	c.read.Store(true)
	c.out.finish()
	c.cancel()
	c.s.remove(c)
	writer.Wait()
	c.awaits.Wait()
	c.linger(err)
	c.nc.Close()
}

// errRefused ends a connection that was told why.
var errRefused = errors.New("client broke the protocol")

// readLoop handles requests in order until the client goes or breaks the
// rules. Bytes that make no sense end it without an answer.
func (c *conn) readLoop() error {
	c.in.SetLimit(overhop.MinFrameLimit) // a stranger may cost no more
	for {
		if !c.in.Ready() {
			c.out.kick() // nothing more to add to what is written at once
			c.rest()
			c.busy.stop()
		}
		payload, err := c.in.Next()
		c.busy.start()
		if err != nil {
			c.foreign(err)
			c.dawdled(err)
			return err
		}
		e, err := overhop.ParseEnvelope(payload)
		if err != nil {
			return err
		}
		if !c.out.await(maxSlots) {
			return net.ErrClosed
		}
		if err := c.step(e); err != nil {
			return err
		}
		c.dropFrame()
	}
}

// step holds a message against the rules of order and does what they say.
func (c *conn) step(e overhop.Envelope) error {
	c.order.Lock()
	step := c.session.Step(e, time.Now())
	c.order.Unlock()
	switch step.Do {
	case overhop.DoHandle:
		return c.handle(e)
	case overhop.DoHi:
		c.out.answer(func(b []byte) []byte {
			return overhop.AppendHi(b, e.RID, c.session.Hello.Delivery, c.s.cfg.Node, c.s.cfg.Wire.MaxEnvelope)
		})
	case overhop.DoRegister:
		wid := uuid.NewString()
		c.yard = c.s.yard.Session()
		c.s.enlist(c, wid)
		c.in.SetLimit(c.s.cfg.Wire.MaxEnvelope)
		c.out.answer(func(b []byte) []byte { return overhop.AppendOK(b, e.RID, textField("wid", wid)) })
	default:
		return c.refuse(e.RID, step.Code, step.Message)
	}
	return nil
}

// refuse answers an ERR after which the connection ends.
func (c *conn) refuse(rid string, code overhop.Code, message string) error {
	c.out.answer(func(b []byte) []byte { return overhop.AppendErr(b, rid, code, message, nil) })
	if n, say := c.s.refusals.Again(time.Now()); say {
		c.s.log.Info("edge refuses a client", "from", c.host, "code", string(code), "reason", message, "times", n)
	}
	return errRefused
}

// tick is the purge's look at a connection that is not registered.
func (c *conn) tick(now time.Time) {
	c.order.Lock()
	step := c.session.Tick(now)
	c.order.Unlock()
	switch step.Do {
	case overhop.DoHangUp:
		c.out.finish()
	case overhop.DoRefuseOut:
		c.out.push(pushLimit, func(b []byte) ([]byte, error) {
			return overhop.AppendErr(b, overhop.PushRID, step.Code, step.Message, nil), nil
		})
		c.out.finish()
	case overhop.DoIdent:
		timeout := time.Duration(c.s.cfg.Wire.Session.Ident) * time.Second
		c.out.push(pushLimit, func(b []byte) ([]byte, error) { return overhop.AppendIdent(b, timeout, step.Deadline), nil })
	}
}

// delivery tells a client that knows the delivery extension. It is constant
// once the client has registered.
func (c *conn) delivery() bool { return c.session.Hello.Delivery }

// takesJobs tells a client that may be sent QUESTs.
func (c *conn) takesJobs() bool { return c.delivery() || !*c.s.cfg.Delivery.RequireHelloExt }

// pushFields says something that is not said often, to a client that knows it.
func (c *conn) pushFields(t int64, p overhop.Fields) {
	if !c.takesJobs() {
		return
	}
	got, _ := c.out.push(pushLimit, func(b []byte) ([]byte, error) {
		b, _ = overhop.AppendFields(b, t, overhop.PushRID, p)
		return b, nil
	})
	if got == sentFull {
		c.cut() // the client does not read
	}
}

// bye closes the connection on purpose, once all is written.
func (c *conn) bye(code, message string) {
	c.order.Lock()
	told := c.session.Registered() && c.session.Hello.Delivery
	c.order.Unlock()
	if told {
		c.pushFields(overhop.TBye, overhop.Fields{"code": code, "msg": message})
	}
	c.out.finish()
}

func textField(key, value string) overhop.Raw {
	return overhop.AppendStr(overhop.AppendStr(overhop.AppendMap(nil, 1), key), value)
}
