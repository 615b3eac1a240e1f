package peers

import (
	"cmp"
	"fmt"
	"slices"
	"time"
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

// Contacts returns the contacts with all members that have ever answered or
// been refused, sorted by name.
func (l *PeerListener) Contacts() []Contact {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]Contact, 0, len(l.contacts))
	for _, p := range l.contacts {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Contact) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// recordContact records a hello of a member. refused is why the exchange
// failed, or "".
func (l *PeerListener) recordContact(h *hello, secured bool, refused string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isKnown(h.Node) {
		return // ignore names of non-members, which anyone could invent
	}
	p := l.contacts[h.Node]
	if p == nil {
		p = &Contact{Name: h.Node}
		l.contacts[h.Node] = p
	}
	p.Build, p.TLS, p.Refused, p.At = h.Build, secured, refused, time.Now()
}

// recordRefusal records that the member at addr and this one refuse each other.
func (l *PeerListener) recordRefusal(addr, reason string) {
	name := l.nameAt(addr)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isKnown(name) {
		return
	}
	if l.contacts[name] == nil {
		l.contacts[name] = &Contact{Name: name}
	}
	l.contacts[name].Refused, l.contacts[name].At = reason, time.Now()
}

// isKnown reports whether name is a member's. The caller must hold l.mu.
func (l *PeerListener) isKnown(name string) bool {
	_, known := l.self.memberNamed(name)
	return known || slices.ContainsFunc(l.declared, func(m Member) bool { return m.Name == name })
}

// logThrottled logs that two members refuse each other, at most once per
// logInterval for the same key. reasonKey is the key of the attribute with the
// reason: "reason" is why this node cannot use the other member, "answer" is
// what a caller was answered.
func (l *PeerListener) logThrottled(key, message, peer, reasonKey, reason string) {
	if !l.recentlyLogged(key) {
		l.log.Warn(message, "peer", peer, reasonKey, reason)
	}
}

// recentlyLogged reports whether key was logged within the last logInterval,
// and records it as logged if not. Members, and strangers, retry again and
// again.
func (l *PeerListener) recentlyLogged(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.lastLogged[key]) < logInterval {
		return true
	}
	if len(l.lastLogged) >= maxLogKeys {
		clear(l.lastLogged)
	}
	l.lastLogged[key] = time.Now()
	return false
}

// logRefusedCaller logs that a caller was refused. A caller may use any name
// and be refused for many reasons, so the log is throttled by the caller's
// host, and by its name only if that is a member's.
func (l *PeerListener) logRefusedCaller(from string, refused *RefusedError) {
	key := "caller " + from
	l.mu.Lock()
	if l.isKnown(refused.Peer) {
		key += " " + refused.Peer
	}
	l.mu.Unlock()
	l.logThrottled(key, "a caller at the raft port is refused", refused.Peer, "answer", refused.Reason)
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
			_, _ = l.fetchHello(addr) // fetchHello records and logs the result
		}
	}
}

// staleAddrs returns the addresses of members without recent contact.
func (l *PeerListener) staleAddrs() (addrs []string) {
	if self := l.hello(); !self.formed() {
		return nil
	}
	for _, addr := range l.otherAddrs() {
		name := l.nameAt(addr)
		l.mu.Lock()
		p := l.contacts[name]
		l.mu.Unlock()
		if p == nil || time.Since(p.At) >= probeInterval {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
