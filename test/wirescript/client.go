package wirescript

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// client is one scripted connection: its unanswered requests and unread frames.
type client struct {
	name     string
	nc       net.Conn
	state    string // as in Exchange.State
	extended bool
	count    int // of the requests sent
	pending  []pendingRequest
	retry    bool // repeat the request until the answer matches

	buffering bool // collect writes in buffered
	buffered  []byte

	frames  chan overhop.Envelope // closed at the connection's end
	readErr error                 // a malformed frame; set before frames is closed
	unread  []overhop.Envelope    // read, not consumed by a step yet
	ended   bool
}

type pendingRequest struct {
	wireRequest
	state string
}

// connect opens a connection for the client of that name.
func (r *scriptRun) connect(name string) (*client, error) {
	nc, err := r.env.Dial(name)
	if err != nil {
		return nil, err
	}
	c := &client{name: name, nc: nc, state: "fresh", frames: make(chan overhop.Envelope, 10_000)}
	r.clients[name] = c
	r.all = append(r.all, c)
	go c.read()
	return c, nil
}

// read reads frames into c.frames until the connection ends.
func (c *client) read() {
	defer close(c.frames)
	in := frame.NewReader(c.nc, overhop.MaxFrameLimit)
	for {
		b, err := in.Next()
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, frame.ErrZeroLength) {
			c.readErr = err
		}
		if err != nil {
			return
		}
		e, err := overhop.ParseEnvelope(slices.Clone(b))
		if err != nil {
			c.readErr = err
			return
		}
		c.frames <- e
	}
}

// write sends b, or buffers it. Write errors are ignored: the server may close
// before it has read everything, and the next read detects that.
func (c *client) write(b []byte) {
	if c.buffering {
		c.buffered = append(c.buffered, b...)
		return
	}
	c.nc.SetWriteDeadline(time.Now().Add(time.Minute))
	c.nc.Write(b)
}

// sendChunks sends the buffered bytes in pieces of size bytes, all at once if
// size is 0, and stops buffering.
func (c *client) sendChunks(size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	data := c.buffered
	c.buffering, c.buffered = false, nil
	if n == 0 {
		n = len(data)
	}
	for piece := range slices.Chunk(data, n) {
		c.write(piece)
	}
	return nil
}

// errNoFrame means that no frame has arrived.
var errNoFrame = errors.New("got nothing")

// next returns the next push, or else the next answer. The server may interleave
// the two freely.
func (c *client) next(env *Env, push bool) (e overhop.Envelope, err error) {
	var timeout <-chan time.Time
	if env.AwaitIdle != nil {
		env.AwaitIdle()
	} else {
		timer := time.NewTimer(env.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		if i := slices.IndexFunc(c.unread, func(e overhop.Envelope) bool { return isPush(e.T) == push }); i >= 0 {
			e = c.unread[i]
			c.unread = slices.Delete(c.unread, i, i+1)
			return e, nil
		}
		if c.ended {
			return e, fmt.Errorf("got nothing, the connection has ended%s", c.unexpected())
		}
		if err := c.readFrame(timeout); err != nil {
			return e, fmt.Errorf("%w%s", err, c.unexpected())
		}
	}
}

// readFrame reads one frame into c.unread. It waits until timeout, or not at all
// if timeout is nil.
func (c *client) readFrame(timeout <-chan time.Time) error {
	var e overhop.Envelope
	open := true
	if timeout == nil {
		select {
		case e, open = <-c.frames:
		default:
			return errNoFrame
		}
	} else {
		select {
		case e, open = <-c.frames:
		case <-timeout:
			return errNoFrame
		}
	}
	switch {
	case !open:
		c.ended = true
		return c.readErr
	case e.T > overhop.TPong && !c.extended:
		return fmt.Errorf("got %s without having offered the extension", nameByType[e.T])
	}
	c.unread = append(c.unread, e)
	return nil
}

// unexpected formats the unread frames for an error.
func (c *client) unexpected() (text string) {
	for _, e := range c.unread {
		text += fmt.Sprintf("; but got %s %s", nameByType[e.T], format(e.P))
	}
	return text
}

// expectQuiet checks that no frame has arrived. If the environment cannot report
// that the server is idle, it sends a PING and checks that nothing precedes the
// PONG.
func (r *scriptRun) expectQuiet(c *client) error {
	if r.env.AwaitIdle != nil {
		r.env.AwaitIdle()
		return r.expectNothing(c)
	}
	if c.state == "registered" || c.state == "plain" {
		r.sendRequest(c, wireRequest{name: "PING", typ: overhop.TPing, payload: overhop.EmptyMap})
		if err := r.expect(c, "PONG {server_time: time}"); err != nil {
			return err
		}
	}
	return r.expectNothing(c)
}

// expectNothing checks that no frame is unread.
func (r *scriptRun) expectNothing(c *client) error {
	if r.env.AwaitIdle != nil {
		r.env.AwaitIdle()
	}
	for !c.ended {
		if err := c.readFrame(nil); errors.Is(err, errNoFrame) {
			break
		} else if err != nil {
			return err
		}
	}
	if len(c.unread) > 0 {
		return fmt.Errorf("%s should have got nothing%s", c.name, c.unexpected())
	}
	return nil
}

// expectClosed checks that the server has closed the connection without sending
// anything more.
func (r *scriptRun) expectClosed(c *client) error {
	e, err := c.next(&r.env, false)
	switch {
	case err == nil:
		return fmt.Errorf("%s should be closed, but got %s %s", c.name, nameByType[e.T], format(e.P))
	case !c.ended:
		return fmt.Errorf("%s: connection is still open (%w)", c.name, err)
	}
	c.nc.Close()
	return r.expectNothing(c)
}

// updateState updates the connection's state after an exchange.
func (c *client) updateState(x Exchange) {
	switch {
	case x.Answer == "HI":
		c.state = "helloed"
		for ext := range x.Response.Get("ext").Items() {
			name, _ := ext.Str()
			c.extended = c.extended || name == overhop.Delivery
		}
	case x.Name == "REGISTER" && x.Answer == "OK" && c.extended:
		c.state = "registered"
	case x.Name == "REGISTER" && x.Answer == "OK":
		c.state = "plain"
	}
}

// typeByName maps the names of messages to their types.
var typeByName = map[string]int64{
	"HELLO": overhop.THello, "REGISTER": overhop.TRegister, "PING": overhop.TPing, "QUEUE": overhop.TQueue,
	"LSQUEUE": overhop.TLsQueue, "SUBSCRIBE": overhop.TSubscribe, "UNSUBSCRIBE": overhop.TUnsubscribe,
	"CREDIT": overhop.TCredit, "ADDQUEUE": overhop.TAddQueue, "STATUS": overhop.TStatus, "RMQUEUE": overhop.TRmQueue,
	"PAUSE": overhop.TPause, "RESUME": overhop.TResume, "ENQUEUE": overhop.TEnqueue, "JOB": overhop.TJob,
	"RMJOB": overhop.TRmJob, "LSJOB": overhop.TLsJob, "QSTATS": overhop.TQStats,

	"ACK": overhop.TAck, "NACK": overhop.TNack, "BEAT": overhop.TBeat, "PROGRESS": overhop.TProgress, "LOG": overhop.TLog,
	"DONE": overhop.TDone, "FAIL": overhop.TFail, "AWAIT": overhop.TAwait, "GOODBYE": overhop.TGoodbye,
	"CANCEL": overhop.TCancel, "RETRYJOB": overhop.TRetryJob, "CLRQUEUE": overhop.TClrQueue, "OBLITERATE": overhop.TObliterate, "SETQUEUE": overhop.TSetQueue, "SETJOB": overhop.TSetJob, "CONTENT": overhop.TContent, "API": overhop.TAPI,

	"OK": overhop.TOK, "ERR": overhop.TErr, "HI": overhop.THi, "IDENT": overhop.TIdent, "PONG": overhop.TPong,
	"QUEST": overhop.TQuest, "RECALL": overhop.TRecall, "CREDITS": overhop.TCredits, "DRAIN": overhop.TDrain,
	"BYE": overhop.TBye, "JOBEND": overhop.TJobEnd,
}

var nameByType = func() map[int64]string {
	names := make(map[int64]string)
	for name, t := range typeByName {
		names[t] = name
	}
	return names
}()

// isPush reports whether the server sends messages of type t unrequested, under
// the id of pushes.
func isPush(t int64) bool { return t == overhop.TIdent || t >= overhop.TQuest }
