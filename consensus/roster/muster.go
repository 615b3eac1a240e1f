package roster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"yardmaster/internal/certs"
)

const (
	askEvery    = 200 * time.Millisecond
	tellMissing = 3 * time.Second
)

// Member is a declared member of a yard.
type Member struct {
	Name string
	Addr string // host:port of its raft port, as the others reach it
}

// Config says who this node is to be.
type Config struct {
	Yard    string   // the yard as people call it; default "yard"
	Node    string   // this member's name: lower case letters, digits, '-'
	Dir     string   // data directory; made if missing
	Listen  string   // host:port of the raft port; "" only for a node alone
	Members []Member // all declared members, this one too; none or one: alone

	// Build is what this member runs.
	Build Build
	// Certificates are what members show each other; nil: they speak no TLS.
	Certificates *certs.Store

	// Listener is used instead of Listen if it is given.
	Listener net.Listener
	// Route is where the others reach this member's NATS server, for the words
	// that tell how to let it in.
	Route string
	// Waiting hears whom, or what, a node waits for, every round; may be nil.
	Waiting func(reasons []string)
}

var nodeName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func (c Config) withDefaults() Config {
	if c.Yard == "" {
		c.Yard = "yard"
	}
	if len(c.Members) == 0 {
		c.Members = []Member{{Name: c.Node, Addr: c.Listen}}
	}
	return c
}

// Validate checks what can be checked without the others.
func (c Config) Validate() error {
	if !nodeName.MatchString(c.Node) {
		return fmt.Errorf("node name %q: must be 1 to 63 lower case letters, digits or '-', not at its ends", c.Node)
	}
	if c.Dir == "" {
		return errors.New("data directory is not given")
	}
	seen := map[string]bool{}
	for _, m := range c.Members {
		if !nodeName.MatchString(m.Name) || seen[m.Name] {
			return fmt.Errorf("member %q: name is not valid or declared twice", m.Name)
		}
		seen[m.Name] = true
		if len(c.Members) > 1 && m.Addr == "" {
			return fmt.Errorf("member %q has no raft address", m.Name)
		}
	}
	if len(c.Members) > 0 && !seen[c.Node] {
		return fmt.Errorf("node %q is not among the declared members", c.Node)
	}
	if len(c.Members) > 1 && c.Listen == "" && c.Listener == nil {
		return errors.New("a member needs a raft port to listen at")
	}
	return nil
}

// Identify locks the data directory, opens the raft port and returns once this
// node belongs to a yard: soon if it did before or is alone, else when all
// declared members are there, or when a yard that has formed already lets this
// directory in, for which an operator has to ask. It refuses a directory that
// does not belong to the node ([*RefusedError]) or was taken out of its yard
// ([*GoneError]), and stops waiting when ctx ends.
//
// The caller closes the Identity, after whatever uses its door.
func Identify(ctx context.Context, cfg Config, log *slog.Logger) (*Identity, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ln, err := listen(cfg)
	if err != nil {
		return nil, err
	}
	id, err := openIdentity(cfg.Dir, cfg.Yard, cfg.Node)
	if err != nil {
		if ln != nil {
			ln.Close()
		}
		return nil, err
	}
	if ln != nil {
		id.door = newDoor(ln, cfg.hello(id), cfg.Members, cfg.Certificates, log)
	}
	if id.Yard != "" {
		err = id.consult(ctx, log)
	} else if err = form(ctx, cfg, id, log); err == nil {
		log.Info("yard formed", "yard", id.Yard, "members", len(id.Peers()))
	}
	if err != nil {
		return nil, errors.Join(err, id.Close())
	}
	return id, nil
}

func listen(cfg Config) (net.Listener, error) {
	if cfg.Listener != nil || cfg.Listen == "" {
		return cfg.Listener, nil
	}
	ln, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("open raft port: %w", err)
	}
	return ln, nil
}

func (c Config) hello(id *Identity) hello {
	h := hello{
		Yard: c.Yard, Node: id.Node, Dir: id.Dir, YardID: id.Yard, Roster: id.Roster,
		Members: memberNames(c.Members), Build: c.Build,
	}
	if roll := id.file.Roll; roll.Revision > 0 {
		h.Roll = &roll
	}
	return h
}

func memberNames(members []Member) []string {
	var names []string
	for _, m := range members {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// form finds this node's yard and writes it.
func form(ctx context.Context, cfg Config, id *Identity, log *slog.Logger) error {
	found := belonging{founders: []Seat{id.Seat}}
	if len(cfg.Members) > 1 {
		m := &muster{cfg: cfg, self: id.Seat, door: id.door}
		var err error
		if found, err = m.wait(ctx, log); err != nil {
			return err
		}
	}
	if err := id.form(found.founders, found.roll); err != nil {
		return err
	}
	if id.door != nil {
		id.door.say(func(h *hello) { h.YardID, h.Roster = id.Yard, id.Roster })
		if found.roll.Revision > 0 {
			id.door.enroll(found.roll)
		} else {
			id.door.found(id.Peers())
		}
	}
	return nil
}

// belonging is a yard that a node is of.
type belonging struct {
	founders []Seat
	roll     Roll // of a yard that had formed before
}

// muster gathers the members of a yard that has not formed.
type muster struct {
	cfg  Config
	self Seat
	door *Door
	plan string // last one told

	outside bool // a yard that has formed keeps this node waiting
}

// wait asks all others again and again until it is settled who belongs
// together. A node that waits at a yard which has formed knocks less often.
func (m *muster) wait(ctx context.Context, log *slog.Logger) (belonging, error) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	told := time.Now()
	for {
		found, missing, err := m.round()
		if err != nil || found.founders != nil {
			return found, err
		}
		if m.cfg.Waiting != nil {
			m.cfg.Waiting(missing)
		}
		if m.outside {
			tick.Reset(knockEvery)
		}
		if time.Since(told) >= tellMissing && len(missing) > 0 {
			told = time.Now()
			log.Info("waiting for members before the yard can form", "missing", strings.Join(missing, "; "))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return belonging{}, fmt.Errorf("yard did not form, missing %s: %w", strings.Join(missing, "; "), ctx.Err())
		}
	}
}

// round asks every other member once. It returns the yard if that is settled,
// else who is missing and why.
func (m *muster) round() (belonging, []string, error) {
	answers := m.askAll()
	seats := []Seat{m.self}
	var missing []string
	agreed := true
	for i, peer := range m.cfg.Members {
		if peer.Name == m.self.Node {
			continue
		}
		a := &answers[i]
		if a.err == nil && a.formed() {
			found, why, err := m.adopt(&a.hello)
			if err != nil || found.founders != nil {
				return found, nil, err
			}
			if m.outside = true; !slices.Contains(missing, why) {
				missing = append(missing, why)
			}
			continue
		}
		if reason := m.unfit(peer, a); reason != "" {
			missing = append(missing, peer.Name+": "+reason)
			continue
		}
		seats = append(seats, a.seat())
		agreed = agreed && a.Plan != "" && a.Plan == m.plan
	}
	if len(missing) > 0 {
		m.tell("")
		return belonging{}, missing, nil
	}
	sortSeats(seats)
	plan := yardID(m.cfg.Yard, seats)
	if agreed && plan == m.plan {
		return belonging{founders: seats}, nil, nil
	}
	m.tell(plan)
	return belonging{}, nil, nil
}

type answer struct {
	hello
	err error
}

func (m *muster) askAll() []answer {
	answers := make([]answer, len(m.cfg.Members))
	var asks sync.WaitGroup
	for i, peer := range m.cfg.Members {
		if peer.Name == m.self.Node {
			continue
		}
		asks.Go(func() { answers[i].hello, answers[i].err = m.door.ask(peer.Addr) })
	}
	asks.Wait()
	return answers
}

func (m *muster) tell(plan string) {
	m.plan = plan
	m.door.say(func(h *hello) { h.Plan = plan })
}

// adopt takes the yard of a member that has formed, if this node sits in it;
// else why says what an operator can do.
func (m *muster) adopt(peer *hello) (found belonging, why string, err error) {
	reason := ""
	switch {
	case peer.Yard != m.cfg.Yard:
		reason = fmt.Sprintf("belongs to yard %q, this node is declared in yard %q", peer.Yard, m.cfg.Yard)
	case yardID(peer.Yard, peer.Roster) != peer.YardID:
		reason = "shows a roster that does not match its yard id"
	}
	if reason != "" {
		return belonging{}, "", &RefusedError{Peer: peer.Node, Reason: reason}
	}
	if peer.sits(m.self) {
		if peer.Roll != nil {
			found.roll = *peer.Roll
		}
		found.founders = peer.Roster
		return found, "", nil
	}
	if seat, seated := peer.seatOf(m.self.Node); seated {
		return belonging{}, replaceText(m.self.Node, seat.Dir, m.self.Dir), nil
	}
	return belonging{}, m.addText(), nil
}

// addText is what lets this node into a yard that has formed without it.
func (m *muster) addText() string {
	raft, route := "HOST:PORT", "HOST:PORT"
	for _, member := range m.cfg.Members {
		if member.Name == m.self.Node && member.Addr != "" {
			raft = member.Addr
		}
	}
	if m.cfg.Route != "" {
		route = m.cfg.Route
	}
	return fmt.Sprintf("the yard has formed without a member %q: let it in by 'yardmaster cluster add %s --route %s --raft %s' at any member",
		m.self.Node, m.self.Node, route, raft)
}

// unfit says why a member that has not formed cannot be counted yet, or "".
func (m *muster) unfit(peer Member, a *answer) string {
	switch {
	case a.err != nil:
		return a.err.Error()
	case a.Yard != m.cfg.Yard:
		return fmt.Sprintf("is declared in yard %q, not %q", a.Yard, m.cfg.Yard)
	case a.Node != peer.Name:
		return fmt.Sprintf("%s answers as %q", peer.Addr, a.Node)
	case !slices.Equal(a.Members, memberNames(m.cfg.Members)):
		return fmt.Sprintf("declares other members (%s)", strings.Join(a.Members, ", "))
	}
	return ""
}

func replaceText(node, seated, came string) string {
	return fmt.Sprintf("member %s belongs to data directory %s, but came with %s: its old directory is lost or another one was mounted. "+
		"Mount the old one, or if it is lost, give its place to this one by 'yardmaster cluster replace %s' at any other member", node, seated, came, node)
}
