package peers

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

const (
	handshakeTimeout = 3 * time.Second
	maxHandshakes    = 64 // at the same time; further connections wait in the kernel
)

// reasonNotFormed is a temporary reason to refuse a connection, which is not
// logged.
const reasonNotFormed = "has not formed its yard yet"

// RefusedError is returned when two members refuse each other.
type RefusedError struct {
	Peer   string // name or address
	Reason string
}

func (e *RefusedError) Error() string { return fmt.Sprintf("member %s: %s", e.Peer, e.Reason) }

// PeerListener is the raft port. It exchanges hellos on every connection,
// answers probes itself and passes connections for Raft to Accept.
type PeerListener struct {
	peerState
	ln         net.Listener
	certs      *certs.Store // nil: no TLS
	secret     string       // shared by the members; "": not required
	raftConns  chan net.Conn
	done       chan struct{}
	handshakes chan struct{}
	work       sync.WaitGroup

	connsMu crash.Mutex
	conns   map[*trackedConn]struct{} // every accepted connection, to be closed by Close
	closed  bool
}

// newPeerListener starts to serve ln; Close stops it.
func newPeerListener(ln net.Listener, self hello, members []Member, store *certs.Store, secret string, log *slog.Logger) *PeerListener {
	l := &PeerListener{
		peerState: newPeerState(self, members, log), ln: ln, certs: store, secret: secret, conns: map[*trackedConn]struct{}{},
		raftConns: make(chan net.Conn), done: make(chan struct{}), handshakes: make(chan struct{}, maxHandshakes),
	}
	l.work.Go(l.serve)
	l.work.Go(l.probeLoop)
	return l
}

// Addr returns the address that the listener is bound to.
func (l *PeerListener) Addr() net.Addr { return l.ln.Addr() }

// Accept returns the next connection that a member made for Raft.
func (l *PeerListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.raftConns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Dial connects for Raft to the member with this server id. If the node that
// answers is of another cluster, version, name or directory, the error is a
// [*RefusedError]: what is sent to one member must never reach another.
func (l *PeerListener) Dial(id string, timeout time.Duration) (net.Conn, error) {
	addr := l.Address(id)
	if addr == "" {
		return nil, &RefusedError{Peer: id, Reason: errNotMember.Error()}
	}
	conn, answer, err := l.connect(addr, purposeRaft, timeout)
	if err != nil {
		if answer.Truncated {
			l.reportTruncated(err)
		}
		return nil, err
	}
	self, reason := l.hello(), ""
	switch {
	case answer.YardID != self.YardID:
		reason = "belongs to yard " + answer.YardID + ", this node to " + self.YardID
	case answer.memberID().ServerID() != id:
		reason = fmt.Sprintf("answers as %q, of data directory %s, at %s", answer.Node, answer.Dir, addr)
	default:
		reason = l.truncationReason(&answer)
	}
	if reason != "" {
		conn.Close()
		return nil, &RefusedError{Peer: id, Reason: reason}
	}
	return conn, nil
}

// Close stops the listener and closes every accepted connection.
func (l *PeerListener) Close() error {
	l.connsMu.Lock()
	if l.closed {
		l.connsMu.Unlock()
		return nil
	}
	l.closed = true
	close(l.done)
	for c := range l.conns {
		c.Conn.Close()
	}
	l.connsMu.Unlock()
	err := l.ln.Close()
	l.work.Wait()
	return err
}

// PeerStatus returns the status of the member at addr, or nil if it has not set
// one.
func (l *PeerListener) PeerStatus(addr string) ([]byte, error) {
	answer, err := l.exchange(addr, purposeProbe)
	if err == nil && answer.YardID != l.hello().YardID {
		err = &RefusedError{Peer: l.nameAt(addr), Reason: "belongs to another yard"}
	}
	return answer.Status, err
}

// exchangeTimeout bounds a connection that is closed after the exchange of hellos.
const exchangeTimeout = time.Second

// exchange connects to the member at addr for the given purpose, exchanges hellos and
// closes the connection. Like connect, it may return a hello with an error.
func (l *PeerListener) exchange(addr, purpose string) (hello, error) {
	conn, answer, err := l.connect(addr, purpose, exchangeTimeout)
	if err == nil {
		err = conn.Close()
	}
	return answer, err
}

// helloResult is the hello of another member, or the error of the exchange.
type helloResult struct {
	hello
	err error
}

// exchangeAll calls exchange for all addresses at once and returns the results in the
// order of addrs.
func (l *PeerListener) exchangeAll(addrs []string, purpose string) []helloResult {
	results := make([]helloResult, len(addrs))
	var calls sync.WaitGroup
	for i, addr := range addrs {
		calls.Go(func() { results[i].hello, results[i].err = l.exchange(addr, purpose) })
	}
	calls.Wait()
	return results
}

// connect dials the member at addr and exchanges hellos within timeout: this member's
// hello says for which purpose it connects, purposeProbe or purposeRaft. If one side
// refuses the other, the error is a [*RefusedError]; if the other side did so in its
// hello, that hello is returned, too, because it says more than the reason.
func (l *PeerListener) connect(addr, purpose string, timeout time.Duration) (net.Conn, hello, error) {
	raw, err := net.DialTimeout("tcp", addr, timeout)
	if err != nil {
		return nil, hello{}, err
	}
	conn, answer, err := l.clientHandshake(raw, addr, purpose, timeout)
	if err == nil && answer.Refused != "" { // the other side refuses; err is set if this side does
		err = &RefusedError{Peer: l.nameAt(addr), Reason: answer.Refused}
	}
	if refused, ok := errors.AsType[*RefusedError](err); ok {
		if refused.Reason != reasonNotFormed { // that one is temporary and expected while a cluster forms
			l.logThrottled(refused.Error(), "members do not talk", refused.Peer, "reason", refused.Reason)
			l.recordRefusal(addr, refused.Reason)
		}
		raw.Close()
		return nil, answer, refused
	}
	if err != nil {
		raw.Close()
		return nil, hello{}, fmt.Errorf("member %s: %w", l.nameAt(addr), err)
	}
	return conn, answer, nil
}

// clientHandshake starts TLS and exchanges hellos on raw, a connection that this
// member has made to addr. It returns the connection to use from now on and the other
// side's hello, whose Refused is also set if only this side refuses the other's build.
// It does not close raw.
func (l *PeerListener) clientHandshake(raw net.Conn, addr, purpose string, timeout time.Duration) (net.Conn, hello, error) {
	if err := raw.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, hello{}, err
	}
	conn, cert, err := l.startTLS(raw, addr)
	if err != nil {
		return nil, hello{}, err
	}
	mine := l.hello()
	mine.Purpose, mine.Nonce = purpose, newNonce()
	writeErr := writeHello(conn, mine)
	answer, err := readHello(conn) // a TLS server's refusal arrives here, even if the handshake seemed complete
	if err == nil && writeErr != nil {
		err = fmt.Errorf("write hello: %w", writeErr)
	}
	if err != nil {
		return nil, hello{}, l.certRefused(addr, err)
	}
	if reason := nameMismatch(cert, answer.Node); reason != "" {
		return nil, hello{}, &RefusedError{Peer: l.nameAt(addr), Reason: reason}
	}
	if answer.Refused == "" || answer.Truncated { // neither is believed without a proof
		reason, err := l.proveCaller(conn, &mine, &answer)
		if err != nil {
			return nil, hello{}, fmt.Errorf("write proof: %w", err)
		}
		if reason != "" {
			return nil, hello{}, &RefusedError{Peer: l.nameAt(addr), Reason: reason}
		}
	}
	if answer.Refused == "" {
		answer.Refused = answer.Build.rejectReason(mine.Build)
	}
	l.recordContact(&answer, l.certs != nil, "")
	return conn, answer, raw.SetDeadline(time.Time{})
}

// serve accepts connections until the listener is closed, and handles each in a
// goroutine of its own. It pauses while maxHandshakes connections have not completed
// their handshake; handle releases the place that serve reserves in l.handshakes.
func (l *PeerListener) serve() {
	for {
		select {
		case l.handshakes <- struct{}{}:
		case <-l.done:
			return
		}
		conn, err := l.ln.Accept()
		if err != nil {
			<-l.handshakes
			if errors.Is(err, net.ErrClosed) {
				return
			}
			l.log.Warn("raft port accept failed", "err", err)
			select { // probably out of file descriptors: retry after a pause
			case <-time.After(100 * time.Millisecond):
				continue
			case <-l.done:
				return
			}
		}
		tracked := l.track(conn)
		if tracked == nil {
			return
		}
		l.work.Go(func() { l.handle(tracked) })
	}
}

// handle performs the handshake of an accepted connection, and passes the connection
// to [PeerListener.Accept] if the caller has opened it for Raft. It closes any other
// connection, and one whose caller is refused. serve has reserved a place in
// l.handshakes for it, which it releases after the handshake.
func (l *PeerListener) handle(raw *trackedConn) {
	conn, theirs, err := l.containedHandshake(raw)
	<-l.handshakes
	if err != nil {
		if refused, ok := errors.AsType[*RefusedError](err); ok && refused.Reason != reasonNotFormed {
			l.logRefusedCaller(remoteHost(raw), refused)
		}
		l.log.Debug("connection at the raft port refused", "addr", raw.RemoteAddr().String(), "err", err)
		raw.Close()
		return
	}
	if theirs.Purpose != purposeRaft || !l.assignConn(raw, theirs.memberID()) {
		conn.Close()
		return
	}
	select {
	case l.raftConns <- conn:
	case <-l.done:
		conn.Close()
	}
}

// containedHandshake is serverHandshake. A panic, which the caller's hello may have caused, is an error.
func (l *PeerListener) containedHandshake(raw net.Conn) (conn net.Conn, theirs hello, err error) {
	defer crash.Contain(l.log, crash.Member, func(cause error) { conn, theirs, err = nil, hello{}, cause })
	return l.serverHandshake(raw)
}

// serverHandshake accepts TLS and exchanges hellos on a connection that a caller has
// made. It returns the connection and the caller's hello. If this node refuses the
// caller, it sends the reason in its own hello and returns a [*RefusedError].
func (l *PeerListener) serverHandshake(raw net.Conn) (net.Conn, hello, error) {
	if err := raw.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, hello{}, err
	}
	conn, cert, err := l.acceptTLS(raw)
	if err != nil {
		return nil, hello{}, err
	}
	theirs, err := readHello(conn)
	mine := l.hello()
	if version, ok := errors.AsType[*versionError](err); ok {
		mine.Refused = fmt.Sprintf("version %d of the members' protocol is not known here", version.theirs)
		return nil, hello{}, errors.Join(err, writeHello(conn, mine))
	}
	if err != nil {
		return nil, hello{}, err
	}
	if reason := nameMismatch(cert, theirs.Node); reason != "" {
		return nil, hello{}, l.reject(conn, hello{}, reason)
	}
	mine.Refused = mine.Build.rejectReason(theirs.Build)
	if mine.Refused == "" && theirs.Purpose == purposeRaft {
		mine.Refused = mine.rejectReason(theirs)
		if mine.Refused == "" {
			mine.Refused = l.truncationReason(&theirs)
			mine.Truncated = mine.Refused != ""
		}
	}
	l.warnDirChanged(&mine, &theirs, conn)
	l.recordContact(&theirs, cert != nil, mine.Refused)
	mine.Nonce = newNonce()
	mine.Proof = l.proof(proofOfCalled, &theirs, &mine)
	if err := writeHello(conn, mine); err != nil {
		return nil, hello{}, err
	}
	if mine.Refused != "" {
		return nil, hello{}, &RefusedError{Peer: theirs.Node, Reason: mine.Refused}
	}
	if err := l.verifyCaller(conn, &theirs, &mine); err != nil {
		return nil, hello{}, err
	}
	return conn, theirs, raw.SetDeadline(time.Time{})
}

// warnDirChanged logs, throttled, that a member came with another data
// directory than the one the cluster knows. That member waits and logs the
// reason itself; this log entry is for the operator of the other members.
func (l *PeerListener) warnDirChanged(mine, theirs *hello, conn net.Conn) {
	listed, isListed := mine.memberNamed(theirs.Node)
	if !isListed || mine.hasMember(theirs.memberID()) || theirs.Yard != mine.Yard || l.recentlyLogged("moved "+theirs.Node) {
		return
	}
	l.log.Warn("a member came without its data directory and is kept waiting: mount that one again, or replace the member if it is lost",
		"peer", theirs.Node, "directory", listed.Dir, "came_with", theirs.Dir, "addr", conn.RemoteAddr().String(),
		"command", "yardmaster cluster replace "+theirs.Node)
}

// rejectReason returns why this node, whose hello is h, refuses a connection for Raft
// from the sender of theirs, or "" if it does not. The text is sent to that node.
func (h *hello) rejectReason(theirs hello) string {
	switch listed, isListed := h.memberNamed(theirs.Node); {
	case !h.formed():
		return reasonNotFormed
	case theirs.YardID != h.YardID:
		return fmt.Sprintf("belongs to yard %s, the caller to %s", h.YardID, theirs.YardID)
	case h.hasMember(theirs.memberID()):
		return ""
	case !isListed:
		return fmt.Sprintf("knows no member %q", theirs.Node)
	default:
		return replaceHint(theirs.Node, listed.Dir, theirs.Dir)
	}
}

// trackedConn is an accepted connection that PeerListener.Close also closes.
type trackedConn struct {
	net.Conn
	listener *PeerListener
	member   MemberID // zero until the connection is Raft's; guarded by listener.connsMu
}

func (t *trackedConn) Close() error {
	t.listener.connsMu.Lock()
	delete(t.listener.conns, t)
	t.listener.connsMu.Unlock()
	return t.Conn.Close()
}

// track adds a connection to those that Close closes. If the listener is closed
// already, track closes the connection and returns nil.
func (l *PeerListener) track(conn net.Conn) *trackedConn {
	l.connsMu.Lock()
	defer l.connsMu.Unlock()
	if l.closed {
		conn.Close()
		return nil
	}
	tracked := &trackedConn{Conn: conn, listener: l}
	l.conns[tracked] = struct{}{}
	return tracked
}

// assignConn records the member of a connection for Raft. It returns false if
// that member has just been removed.
func (l *PeerListener) assignConn(conn *trackedConn, id MemberID) bool {
	l.connsMu.Lock()
	conn.member = id
	l.connsMu.Unlock()
	self := l.hello() // only now: updateMembership closes the connections of removed members after it has changed the list
	return self.hasMember(id)
}

// probeLoop probes members without recent contact. Two followers exchange no
// messages until one of them becomes a candidate, but incompatible builds must
// be known before that.
func (l *PeerListener) probeLoop() {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-l.done:
			return
		case <-tick.C:
		}
		for _, addr := range l.staleAddrs() {
			_, _ = l.exchange(addr, purposeProbe) // which records and logs the result
		}
	}
}
