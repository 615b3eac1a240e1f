package roster

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

const (
	visitEvery = 15 * time.Second
	tellAgain  = time.Minute // the same refusal in the log
	maxTold    = 128         // different refusals that are remembered
)

// Build says which program a member runs.
type Build struct {
	Version string `json:"version"` // for people
	// Level stands for all that two members have to understand alike. Members
	// of different levels refuse each other. 0: a build from before there were
	// levels.
	Level int `json:"level"`
}

func (b Build) String() string {
	if b.Level == 0 {
		return "a build that names no protocol level"
	}
	return fmt.Sprintf("build %s, protocol level %d", cmp.Or(b.Version, "unknown"), b.Level)
}

// objection says why members of two builds may not talk, or "". It is told to
// the one of build theirs by the one of build b.
func (b Build) objection(theirs Build) string {
	if b.Level == theirs.Level {
		return ""
	}
	return fmt.Sprintf("runs %s, and the other side %s: they would not understand each other; "+
		"stop all members and start them with one build, see docs/versions.md", b, theirs)
}

// Heard is what the door knows of another member from their last talk.
type Heard struct {
	Name    string
	Build   Build
	TLS     bool      // the last talk was encrypted, and both showed certificates
	At      time.Time // of that talk
	Refused string    // why the two do not talk; "" if they do
}

// Heard tells what is known of the members that were ever heard or refused,
// sorted by name.
func (d *Door) Heard() []Heard {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]Heard, 0, len(d.heard))
	for _, p := range d.heard {
		list = append(list, *p)
	}
	slices.SortFunc(list, func(a, b Heard) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// note remembers a hello of a member; refused is why nothing came of it.
func (d *Door) note(h *hello, secured bool, refused string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.known(h.Node) {
		return // anybody may call himself anything
	}
	p := d.heard[h.Node]
	if p == nil {
		p = &Heard{Name: h.Node}
		d.heard[h.Node] = p
	}
	p.Build, p.TLS, p.Refused, p.At = h.Build, secured, refused, time.Now()
}

// refusedBy remembers that the member at addr and this one do not talk.
func (d *Door) refusedBy(addr, reason string) {
	name := d.nameOf(addr)
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.known(name) {
		return
	}
	if d.heard[name] == nil {
		d.heard[name] = &Heard{Name: name}
	}
	d.heard[name].Refused, d.heard[name].At = reason, time.Now()
}

// known tells a member's name; the door is locked.
func (d *Door) known(name string) bool {
	_, seated := d.self.seatOf(name)
	return seated || slices.ContainsFunc(d.declared, func(m Member) bool { return m.Name == name })
}

// tell says in the log that two do not talk; what has the same key is said now and
// then. How is the attribute that holds the reason: "it" is what the other does, "told"
// what was answered.
func (d *Door) tell(key, message, peer, how, reason string) {
	if !d.lately(key) {
		d.log.Warn(message, "peer", peer, how, reason)
	}
}

// lately tells whether the log has said something within the last minute, and is not
// to say it again: members, and who is none, try again and again.
func (d *Door) lately(key string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.told[key]) < tellAgain {
		return true
	}
	if len(d.told) >= maxTold {
		clear(d.told)
	}
	d.told[key] = time.Now()
	return false
}

// tellCaller says that a caller is refused. Anybody may call himself anything, and be
// refused for as many reasons as he likes: so that goes by where he calls from, and by
// his name if it is a member's.
func (d *Door) tellCaller(from string, refused *RefusedError) {
	key := "caller " + from
	d.mu.Lock()
	if d.known(refused.Peer) {
		key += " " + refused.Peer
	}
	d.mu.Unlock()
	d.tell(key, "a caller at the raft port is refused", refused.Peer, "told", refused.Reason)
}

// visit asks members that were not heard for a while. Two followers have
// nothing to say to each other until one of them wants to lead; that they would
// not understand each other has to be known before.
func (d *Door) visit() {
	tick := time.NewTicker(visitEvery)
	defer tick.Stop()
	for {
		select {
		case <-d.done:
			return
		case <-tick.C:
		}
		for _, addr := range d.unheard() {
			_, _ = d.ask(addr) // what there is to say is remembered and told there
		}
	}
}

func (d *Door) unheard() (addrs []string) {
	if self := d.hello(); !self.formed() {
		return nil
	}
	for _, addr := range d.others() {
		name := d.nameOf(addr)
		d.mu.Lock()
		p := d.heard[name]
		d.mu.Unlock()
		if p == nil || time.Since(p.At) >= visitEvery {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}
