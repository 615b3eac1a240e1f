package dialogue

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/internal/frame"
)

// Conn is a connection to a server.
type Conn = net.Conn

// speaker is one connection and what it has to say and to hear.
type speaker struct {
	name    string
	nc      Conn
	state   string // as Exchange has it
	offered bool
	count   int // of its requests
	pending []asked
	insists bool // asks again until the answer is the wanted one

	gathers bool
	kept    []byte

	frames chan overhop.Envelope // closed at the connection's end
	broken error                 // what the server said that is no frame; set before frames is closed
	early  []overhop.Envelope    // read, not heard yet
	ended  bool
}

type asked struct {
	message
	state string
}

func (p *play) connect(name string) (*speaker, error) {
	nc, err := p.world.Dial(name)
	if err != nil {
		return nil, err
	}
	sp := &speaker{name: name, nc: nc, state: "fresh", frames: make(chan overhop.Envelope, 10_000)}
	p.speakers[name] = sp
	p.all = append(p.all, sp)
	go sp.read()
	return sp, nil
}

// read takes frames as they come, until the connection ends.
func (sp *speaker) read() {
	defer close(sp.frames)
	in := frame.NewReader(sp.nc, overhop.MaxFrameLimit)
	for {
		b, err := in.Next()
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, frame.ErrZeroLength) {
			sp.broken = err
		}
		if err != nil {
			return
		}
		e, err := overhop.ParseEnvelope(slices.Clone(b))
		if err != nil {
			sp.broken = err
			return
		}
		sp.frames <- e
	}
}

// write says bytes. A server may close before it has read them all: what is
// heard next finds that out.
func (sp *speaker) write(b []byte) {
	if sp.gathers {
		sp.kept = append(sp.kept, b...)
		return
	}
	sp.nc.SetWriteDeadline(time.Now().Add(time.Minute))
	sp.nc.Write(b)
}

// send says what was gathered in pieces of so many bytes.
func (sp *speaker) send(size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return err
	}
	kept := sp.kept
	sp.gathers, sp.kept = false, nil
	if n == 0 {
		n = len(kept)
	}
	for piece := range slices.Chunk(kept, n) {
		sp.write(piece)
	}
	return nil
}

// errNothing is what there is to hear when the server rests.
var errNothing = errors.New("hears nothing")

// next is the next push, or the next answer. Their order among each other is
// the server's to choose.
func (sp *speaker) next(w *World, push bool) (e overhop.Envelope, err error) {
	var patience <-chan time.Time
	if w.Settle != nil {
		w.Settle()
	} else {
		timer := time.NewTimer(w.Patience)
		defer timer.Stop()
		patience = timer.C
	}
	for {
		if i := slices.IndexFunc(sp.early, func(e overhop.Envelope) bool { return isPush(e.T) == push }); i >= 0 {
			e = sp.early[i]
			sp.early = slices.Delete(sp.early, i, i+1)
			return e, nil
		}
		if sp.ended {
			return e, fmt.Errorf("hears nothing, the connection has ended%s", sp.overheard())
		}
		if err := sp.take(patience); err != nil {
			return e, fmt.Errorf("%w%s", err, sp.overheard())
		}
	}
}

// take reads one frame into early. Without patience it must be there.
func (sp *speaker) take(patience <-chan time.Time) error {
	var e overhop.Envelope
	open := true
	if patience == nil {
		select {
		case e, open = <-sp.frames:
		default:
			return errNothing
		}
	} else {
		select {
		case e, open = <-sp.frames:
		case <-patience:
			return errNothing
		}
	}
	switch {
	case !open:
		sp.ended = true
		return sp.broken
	case e.T > overhop.TPong && !sp.offered:
		return fmt.Errorf("got %s, which it does not know", names[e.T])
	}
	sp.early = append(sp.early, e)
	return nil
}

// overheard tells what came instead.
func (sp *speaker) overheard() (text string) {
	for _, e := range sp.early {
		text += fmt.Sprintf("; but got %s %s", names[e.T], show(e.P))
	}
	return text
}

// quiet checks that nothing has come. Where it cannot be told when a server
// rests, a PONG shows that nothing came until then.
func (p *play) quiet(sp *speaker) error {
	if p.world.Settle != nil {
		p.world.Settle()
		return p.nothing(sp)
	}
	if sp.state == "registered" || sp.state == "plain" {
		p.say(sp, message{name: "PING", t: overhop.TPing, p: overhop.EmptyMap})
		if err := p.hear(sp, "PONG {server_time: time}"); err != nil {
			return err
		}
	}
	return p.nothing(sp)
}

// nothing checks that nothing is left that has come.
func (p *play) nothing(sp *speaker) error {
	if p.world.Settle != nil {
		p.world.Settle()
	}
	for !sp.ended {
		if err := sp.take(nil); errors.Is(err, errNothing) {
			break
		} else if err != nil {
			return err
		}
	}
	if len(sp.early) > 0 {
		return fmt.Errorf("%s should hear nothing%s", sp.name, sp.overheard())
	}
	return nil
}

// closed checks that the server has closed and said nothing more.
func (p *play) closed(sp *speaker) error {
	e, err := sp.next(&p.world, false)
	switch {
	case err == nil:
		return fmt.Errorf("%s should be closed, but got %s %s", sp.name, names[e.T], show(e.P))
	case !sp.ended:
		return fmt.Errorf("%s: %w (%w)", sp.name, errOpen, err)
	}
	sp.nc.Close()
	return p.nothing(sp)
}

// learn follows the speaker's state.
func (sp *speaker) learn(x Exchange) {
	switch {
	case x.Answer == "HI":
		sp.state = "helloed"
		for ext := range x.Heard.Get("ext").Items() {
			name, _ := ext.Str()
			sp.offered = sp.offered || name == overhop.Delivery
		}
	case x.Name == "REGISTER" && x.Answer == "OK" && sp.offered:
		sp.state = "registered"
	case x.Name == "REGISTER" && x.Answer == "OK":
		sp.state = "plain"
	}
}
