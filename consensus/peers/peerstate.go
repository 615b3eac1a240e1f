package peers

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

const (
	probeInterval = 15 * time.Second
	logInterval   = time.Minute // interval at which the same refusal is logged
	maxLogKeys    = 128         // number of different refusals that are remembered
)

// Build identifies the program that a member runs.
type Build struct {
	Version string `json:"version"` // for display
	// Level is the version of everything that two members must understand in
	// the same way. Members of different levels refuse each other. 0: a build
	// from before levels existed.
	Level int `json:"level"`
	// Zones is the version of the program's time zone database. Members with different ones
	// work together. "": a build that does not name it.
	Zones string `json:"zones,omitempty"`
}

func (b Build) String() string {
	if b.Level == 0 {
		return "a build that names no protocol level"
	}
	return fmt.Sprintf("build %s, protocol level %d", cmp.Or(b.Version, "unknown"), b.Level)
}

// rejectReason returns why a member of build b refuses one of build theirs, or
// "". The text is sent to the refused member.
func (b Build) rejectReason(theirs Build) string {
	if b.Level == theirs.Level {
		return ""
	}
	return fmt.Sprintf("runs %s, and the other side %s: the builds are incompatible; "+
		"stop all members and start them with one build, see docs/guides/upgrade.md", b, theirs)
}

// Contact is the state of the last exchange with another member.
type Contact struct {
	Name    string
	Build   Build
	TLS     bool      // the last exchange was encrypted, and both sides presented certificates
	At      time.Time // time of that exchange
	Refused string    // why the members refuse each other; "": they do not
}

// peerState is the last known state of the members, and the state of this node that it sends to
// them.
type peerState struct {
	log      *slog.Logger
	declared []Member // members in the configuration

	mu         crash.Mutex
	self       hello
	addrs      map[string]string    // address by server id
	logInfo    LogInfo              // access to this node's log and watermarks, once set
	verified   map[string]string    // by server id: Instance of the process whose log was verified
	contacts   map[string]*Contact  // by name of the member
	lastLogged map[string]time.Time // when a key was last logged
}

func newPeerState(self hello, declared []Member, log *slog.Logger) peerState {
	self.Instance = rand.Text()
	return peerState{
		log: log, declared: declared, self: self, addrs: addrsOf(declared, self.peers()),
		verified: map[string]string{}, contacts: map[string]*Contact{}, lastLogged: map[string]time.Time{},
	}
}

// updateHello changes the hello that this node sends.
func (s *peerState) updateHello(change func(*hello)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.self)
	s.addrs = addrsOf(s.declared, s.self.peers())
}

// SetNodeStatus sets the status in this node's hello, which every member can
// get: JSON of at most a few KiB. It reaches members even if NATS does not.
func (s *peerState) SetNodeStatus(status []byte) {
	s.updateHello(func(h *hello) { h.Status = status })
}

// hello returns this node's present hello.
func (s *peerState) hello() hello {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := s.self
	if s.logInfo.LastIndex != nil {
		last := s.logInfo.LastIndex()
		mine.LastIndex = &last
	}
	return mine
}

// nameAt returns the name of the member at addr, or addr itself if it is not
// known.
func (s *peerState) nameAt(addr string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, at := range s.addrs {
		if at == addr {
			return NodeOf(id)
		}
	}
	for _, m := range s.declared {
		if m.Addr == addr {
			return m.Name
		}
	}
	return addr
}

// addrsOf returns the addresses of members, by server id. For a bootstrap
// member the address in this node's configuration takes precedence, which may
// be specific to this node; for a member added later it is the address in the
// membership list.
func addrsOf(declared []Member, peers []Peer) map[string]string {
	addrs := map[string]string{}
	for _, p := range peers {
		addrs[p.ServerID()] = p.Raft
		for _, m := range declared {
			if m.Name == p.Node && m.Addr != "" && (p.JoinRevision == 0 || p.Raft == "") {
				addrs[p.ServerID()] = m.Addr
			}
		}
	}
	return addrs
}

// Address returns the raft address of the member with this server id, or "" if
// there is no such member.
func (s *peerState) Address(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addrs[id]
}

// otherAddrs returns the possible addresses of the other members: those in the
// membership list and the declared ones.
func (s *peerState) otherAddrs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var addrs []string
	add := func(node, addr string) {
		if node != s.self.Node && addr != "" && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	for id, addr := range s.addrs {
		add(NodeOf(id), addr)
	}
	for _, m := range s.declared {
		add(m.Name, m.Addr)
	}
	return addrs
}

// Contacts returns the contacts with all members that have ever answered or
// been refused, sorted by name.
func (s *peerState) Contacts() []Contact {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Contact, 0, len(s.contacts))
	for _, p := range s.contacts {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Contact) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// recordContact records a hello of a member. refused is why the exchange
// failed, or "".
func (s *peerState) recordContact(h *hello, secured bool, refused string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.contact(h.Node); p != nil {
		p.Build, p.TLS, p.Refused, p.At = h.Build, secured, refused, time.Now()
	}
}

// recordRefusal records that the member at addr and this one refuse each other.
func (s *peerState) recordRefusal(addr, reason string) {
	name := s.nameAt(addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.contact(name); p != nil {
		p.Refused, p.At = reason, time.Now()
	}
}

// contact returns the contact with a member, or nil for a name that is not a
// member's, which anyone could invent. The caller must hold s.mu.
func (s *peerState) contact(name string) *Contact {
	if !s.isKnown(name) {
		return nil
	}
	if s.contacts[name] == nil {
		s.contacts[name] = &Contact{Name: name}
	}
	return s.contacts[name]
}

// isKnown reports whether name is a member's. The caller must hold s.mu.
func (s *peerState) isKnown(name string) bool {
	_, known := s.self.memberNamed(name)
	return known || slices.ContainsFunc(s.declared, func(m Member) bool { return m.Name == name })
}

// logThrottled logs that two members refuse each other, at most once per
// logInterval for the same key. reasonKey is the key of the attribute with the
// reason: "reason" is why this node cannot use the other member, "answer" is
// what a caller was answered.
func (s *peerState) logThrottled(key, message, peer, reasonKey, reason string) {
	if !s.recentlyLogged(key) {
		s.log.Warn(message, "peer", peer, reasonKey, reason)
	}
}

// recentlyLogged reports whether key was logged within the last logInterval,
// and records it as logged if not. Members, and strangers, retry again and
// again.
func (s *peerState) recentlyLogged(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.lastLogged[key]) < logInterval {
		return true
	}
	if len(s.lastLogged) >= maxLogKeys {
		clear(s.lastLogged)
	}
	s.lastLogged[key] = time.Now()
	return false
}

// logRefusedCaller logs that a caller was refused. A caller may use any name
// and be refused for many reasons, so the log is throttled by the caller's
// host, and by its name only if that is a member's.
func (s *peerState) logRefusedCaller(from string, refused *RefusedError) {
	key := "caller " + from
	s.mu.Lock()
	if s.isKnown(refused.Peer) {
		key += " " + refused.Peer
	}
	s.mu.Unlock()
	s.logThrottled(key, "a caller at the raft port is refused", refused.Peer, "answer", refused.Reason)
}

// staleAddrs returns the addresses of members without recent contact.
func (s *peerState) staleAddrs() (addrs []string) {
	if self := s.hello(); !self.formed() {
		return nil
	}
	for _, addr := range s.otherAddrs() {
		name := s.nameAt(addr)
		s.mu.Lock()
		p := s.contacts[name]
		if p == nil || time.Since(p.At) >= probeInterval {
			addrs = append(addrs, addr)
		}
		s.mu.Unlock()
	}
	return addrs
}
