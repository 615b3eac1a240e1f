package roster

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"yardmaster/internal/certs"
)

const (
	handshakeTimeout = 3 * time.Second
	maxHandshakes    = 64 // at once; further connections wait in the kernel
)

// notFormed is a refusal that passes.
const notFormed = "has not formed its yard yet"

// RefusedError says why two members do not talk.
type RefusedError struct {
	Peer   string // name or address
	Reason string
}

func (e *RefusedError) Error() string { return fmt.Sprintf("member %s: %s", e.Peer, e.Reason) }

// Door is the raft port: it exchanges hellos on every connection, answers
// probes itself and gives the connections made for raft to Accept.
type Door struct {
	ln    net.Listener
	certs *certs.Store // nil: no TLS is spoken
	log   *slog.Logger
	raft  chan net.Conn
	done  chan struct{}
	slots chan struct{}
	work  sync.WaitGroup

	declared []Member // by the configuration

	mu     sync.Mutex
	self   hello
	places map[string]string // address by the seat's id
	logs   Log               // of this node and the others, once it is known
	met    map[string]string // by the seat's id: the life of its process that was let in
	open   map[net.Conn]Seat // every accepted connection, so that Close ends them; whose it is, if it is raft's
	closed bool
	heard  map[string]*Heard    // of members, by name
	told   map[string]time.Time // refusals in the log, lately
}

// newDoor starts to answer on ln; Close ends it.
func newDoor(ln net.Listener, self hello, members []Member, store *certs.Store, log *slog.Logger) *Door {
	d := &Door{
		ln: ln, self: self, certs: store, log: log, declared: members, places: placesOf(members, self.peers()),
		raft: make(chan net.Conn), done: make(chan struct{}), slots: make(chan struct{}, maxHandshakes),
		open: map[net.Conn]Seat{}, met: map[string]string{}, heard: map[string]*Heard{}, told: map[string]time.Time{},
	}
	d.self.Life = rand.Text()
	d.work.Go(d.serve)
	d.work.Go(d.visit)
	return d
}

// Addr is where the door listens.
func (d *Door) Addr() net.Addr { return d.ln.Addr() }

// Accept gives the next connection a member made for raft.
func (d *Door) Accept() (net.Conn, error) {
	select {
	case c := <-d.raft:
		return c, nil
	case <-d.done:
		return nil, net.ErrClosed
	}
}

// Dial connects for raft to the member whose seat has this id. Who answers from
// another yard, version, name or directory gives a [*RefusedError]: what is
// said to one seat must never reach another.
func (d *Door) Dial(id string, timeout time.Duration) (net.Conn, error) {
	addr := d.Address(id)
	if addr == "" {
		return nil, &RefusedError{Peer: id, Reason: errNoPlace.Error()}
	}
	conn, answer, err := d.meet(addr, forRaft, timeout)
	if err != nil {
		if answer.Behind {
			d.tellBehind(err)
		}
		return nil, err
	}
	self, reason := d.hello(), ""
	switch {
	case answer.YardID != self.YardID:
		reason = "belongs to yard " + answer.YardID + ", this node to " + self.YardID
	case answer.seat().ID() != id:
		reason = fmt.Sprintf("answers as %q, of data directory %s, at %s", answer.Node, answer.Dir, addr)
	default:
		reason = d.behind(&answer)
	}
	if reason != "" {
		conn.Close()
		return nil, &RefusedError{Peer: id, Reason: reason}
	}
	return conn, nil
}

// Close stops the listener and cuts every accepted connection.
func (d *Door) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed = true
	close(d.done)
	for c := range d.open {
		c.Close()
	}
	d.mu.Unlock()
	err := d.ln.Close()
	d.work.Wait()
	return err
}

// say changes what the door tells of this node.
func (d *Door) say(change func(*hello)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.self)
}

// Say has the door tell every member that asks how this node does: JSON of at
// most a few KiB. It is heard where NATS is not.
func (d *Door) Say(word []byte) { d.say(func(h *hello) { h.Word = word }) }

// Hear asks the member at addr how it does; nil if it has not said.
func (d *Door) Hear(addr string) ([]byte, error) {
	answer, err := d.ask(addr)
	if err == nil && answer.YardID != d.hello().YardID {
		err = &RefusedError{Peer: d.nameOf(addr), Reason: "belongs to another yard"}
	}
	return answer.Word, err
}

func (d *Door) hello() hello {
	d.mu.Lock()
	defer d.mu.Unlock()
	mine := d.self
	if d.logs.Last != nil {
		last := d.logs.Last()
		mine.Log = &last
	}
	return mine
}

// ask learns the hello of the member at addr.
func (d *Door) ask(addr string) (hello, error) {
	conn, answer, err := d.meet(addr, probe, time.Second)
	if err != nil {
		return hello{}, err
	}
	return answer, conn.Close()
}

// meet connects and exchanges hellos within timeout. A member that refuses, or
// is to be refused whatever the purpose, gives a [*RefusedError], and its hello
// all the same.
func (d *Door) meet(addr, purpose string, timeout time.Duration) (net.Conn, hello, error) {
	raw, err := net.DialTimeout("tcp", addr, timeout)
	if err != nil {
		return nil, hello{}, err
	}
	conn, answer, err := d.introduce(raw, addr, purpose, timeout)
	if err == nil && answer.Refused != "" {
		err = &RefusedError{Peer: d.nameOf(addr), Reason: answer.Refused}
	}
	if refused := (*RefusedError)(nil); errors.As(err, &refused) {
		if refused.Reason != notFormed {
			d.tell(refused.Error(), "members do not talk", refused.Peer, "it", refused.Reason)
			d.refusedBy(addr, refused.Reason)
		}
		raw.Close()
		return nil, answer, refused
	}
	if err != nil {
		raw.Close()
		return nil, hello{}, fmt.Errorf("member %s: %w", d.nameOf(addr), err)
	}
	return conn, answer, nil
}

func (d *Door) introduce(raw net.Conn, addr, purpose string, timeout time.Duration) (net.Conn, hello, error) {
	if err := raw.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, hello{}, err
	}
	conn, shown, err := d.secure(raw, addr)
	if err != nil {
		return nil, hello{}, err
	}
	mine := d.hello()
	mine.Purpose = purpose
	unsaid := writeHello(conn, mine)
	answer, err := readHello(conn) // where a TLS server says no, even if it has not let us finish
	if err == nil && unsaid != nil {
		err = fmt.Errorf("write hello: %w", unsaid)
	}
	if err != nil {
		return nil, hello{}, d.refusal(addr, err)
	}
	if reason := impostor(shown, answer.Node); reason != "" {
		return nil, hello{}, &RefusedError{Peer: d.nameOf(addr), Reason: reason}
	}
	if answer.Refused == "" {
		answer.Refused = answer.Build.objection(mine.Build)
	}
	d.note(&answer, d.certs != nil, "")
	return conn, answer, raw.SetDeadline(time.Time{})
}

func (d *Door) nameOf(addr string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for id, at := range d.places {
		if at == addr {
			return NodeOf(id)
		}
	}
	for _, m := range d.declared {
		if m.Addr == addr {
			return m.Name
		}
	}
	return addr
}

func (d *Door) serve() {
	for {
		select {
		case d.slots <- struct{}{}:
		case <-d.done:
			return
		}
		conn, err := d.ln.Accept()
		if err != nil {
			<-d.slots
			if errors.Is(err, net.ErrClosed) {
				return
			}
			d.log.Warn("raft port cannot accept", "error", err)
			select { // out of descriptors, most likely: more haste would not help
			case <-time.After(100 * time.Millisecond):
				continue
			case <-d.done:
				return
			}
		}
		tracked, ok := d.track(conn)
		if !ok {
			return
		}
		d.work.Go(func() { d.receive(tracked) })
	}
}

// receive answers one connection and hands it on if it is raft's.
func (d *Door) receive(raw net.Conn) {
	conn, theirs, err := d.answer(raw)
	<-d.slots
	if err != nil {
		if refused := (*RefusedError)(nil); errors.As(err, &refused) && refused.Reason != notFormed {
			d.tellCaller(hostOf(raw), refused)
		}
		d.log.Debug("connection at the raft port refused", "from", raw.RemoteAddr().String(), "error", err)
		raw.Close()
		return
	}
	if theirs.Purpose != forRaft || !d.own(raw, theirs.seat()) {
		conn.Close()
		return
	}
	select {
	case d.raft <- conn:
	case <-d.done:
		conn.Close()
	}
}

func (d *Door) answer(raw net.Conn) (net.Conn, hello, error) {
	if err := raw.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, hello{}, err
	}
	conn, shown, err := d.admit(raw)
	if err != nil {
		return nil, hello{}, err
	}
	theirs, err := readHello(conn)
	if err == nil {
		if reason := impostor(shown, theirs.Node); reason != "" {
			return nil, hello{}, d.sendAway(conn, hello{}, reason)
		}
	}
	mine := d.hello()
	var version *versionError
	switch {
	case errors.As(err, &version):
		mine.Refused = fmt.Sprintf("version %d of the members' protocol is not known here", version.theirs)
	case err != nil:
		return nil, hello{}, err
	default:
		mine.Refused = mine.Build.objection(theirs.Build)
		if mine.Refused == "" && theirs.Purpose == forRaft {
			if mine.Refused = mine.objection(theirs); mine.Refused == "" {
				mine.Refused = d.behind(&theirs)
				mine.Behind = mine.Refused != ""
			}
		}
		d.warnOfMoved(&mine, &theirs, conn)
		d.note(&theirs, shown != nil, mine.Refused)
	}
	if werr := writeHello(conn, mine); werr != nil {
		return nil, hello{}, werr
	}
	if err == nil && mine.Refused != "" {
		err = &RefusedError{Peer: theirs.Node, Reason: mine.Refused}
	}
	if err != nil {
		return nil, hello{}, err
	}
	return conn, theirs, raw.SetDeadline(time.Time{})
}

// warnOfMoved says, now and then, that a member came with a directory that is not its
// own. It is kept waiting, and told why; here stand those who keep the yard.
func (d *Door) warnOfMoved(mine, theirs *hello, conn net.Conn) {
	seat, seated := mine.seatOf(theirs.Node)
	if !seated || mine.sits(theirs.seat()) || theirs.Yard != mine.Yard || d.lately("moved "+theirs.Node) {
		return
	}
	d.log.Warn("a member came without its data directory and is kept waiting: mount that one again, or replace the member if it is lost",
		"member", theirs.Node, "directory", seat.Dir, "came_with", theirs.Dir, "from", conn.RemoteAddr().String(),
		"command", "yardmaster cluster replace "+theirs.Node)
}

// objection says why theirs may not speak raft here, or "".
func (h *hello) objection(theirs hello) string {
	switch seat, seated := h.seatOf(theirs.Node); {
	case !h.formed():
		return notFormed
	case theirs.YardID != h.YardID:
		return fmt.Sprintf("belongs to yard %s, the caller to %s", h.YardID, theirs.YardID)
	case h.sits(theirs.seat()):
		return ""
	case !seated:
		return fmt.Sprintf("knows no member %q", theirs.Node)
	default:
		return replaceText(theirs.Node, seat.Dir, theirs.Dir)
	}
}

// tracked is an accepted connection that Close of the door ends too.
type tracked struct {
	net.Conn
	door *Door
}

func (t *tracked) Close() error {
	t.door.mu.Lock()
	delete(t.door.open, t.Conn)
	t.door.mu.Unlock()
	return t.Conn.Close()
}

func (d *Door) track(conn net.Conn) (net.Conn, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		conn.Close()
		return nil, false
	}
	d.open[conn] = Seat{}
	return &tracked{Conn: conn, door: d}, true
}

// own notes whose connection for raft it is; false: that seat has just gone.
func (d *Door) own(conn net.Conn, seat Seat) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if t, ok := conn.(*tracked); ok {
		d.open[t.Conn] = seat
	}
	return d.self.sits(seat)
}
