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

	// Listener is used instead of Listen if it is given.
	Listener net.Listener
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
// node belongs to a yard: at once if it did before or is alone, else when all
// declared members are there. It refuses a directory that does not belong to
// the node ([*RefusedError]), and stops waiting when ctx ends.
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
		id.door = newDoor(ln, cfg.hello(id), cfg.Members, log)
	}
	if id.Yard == "" {
		if err := form(ctx, cfg, id, log); err != nil {
			return nil, errors.Join(err, id.Close())
		}
		log.Info("yard formed", "yard", id.Yard, "members", len(id.Roster))
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
	return hello{
		Yard: c.Yard, Node: id.Node, Dir: id.Dir, YardID: id.Yard, Roster: id.Roster,
		Members: memberNames(c.Members),
	}
}

func memberNames(members []Member) []string {
	var names []string
	for _, m := range members {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// form finds this node's roster and writes it.
func form(ctx context.Context, cfg Config, id *Identity, log *slog.Logger) error {
	roster := []Seat{id.Seat}
	if len(cfg.Members) > 1 {
		m := &muster{cfg: cfg, self: id.Seat, door: id.door}
		var err error
		if roster, err = m.wait(ctx, log); err != nil {
			return err
		}
	}
	if err := id.form(roster); err != nil {
		return err
	}
	if id.door != nil {
		id.door.say(func(h *hello) { h.YardID, h.Roster = id.Yard, id.Roster })
	}
	return nil
}

// muster gathers the members of a yard that has not formed.
type muster struct {
	cfg  Config
	self Seat
	door *Door
	plan string // last one told
}

// wait asks all others again and again until the roster is settled.
func (m *muster) wait(ctx context.Context, log *slog.Logger) ([]Seat, error) {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	told := time.Now()
	for {
		roster, missing, err := m.round()
		if err != nil || roster != nil {
			return roster, err
		}
		if time.Since(told) >= tellMissing && len(missing) > 0 {
			told = time.Now()
			log.Info("waiting for members before the yard can form", "missing", strings.Join(missing, "; "))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("yard did not form, missing %s: %w", strings.Join(missing, "; "), ctx.Err())
		}
	}
}

// round asks every other member once. It returns the roster if that is
// settled, else who is missing and why.
func (m *muster) round() ([]Seat, []string, error) {
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
			roster, err := m.adopt(&a.hello)
			return roster, nil, err
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
		return nil, missing, nil
	}
	sortSeats(seats)
	plan := yardID(m.cfg.Yard, seats)
	if agreed && plan == m.plan {
		return seats, nil, nil
	}
	m.tell(plan)
	return nil, nil, nil
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

// adopt takes the roster of a member that has formed, if this node sits in it.
func (m *muster) adopt(peer *hello) ([]Seat, error) {
	seat, seated := peer.seatOf(m.self.Node)
	reason := ""
	switch {
	case peer.Yard != m.cfg.Yard:
		reason = fmt.Sprintf("belongs to yard %q, this node is declared in yard %q", peer.Yard, m.cfg.Yard)
	case !seated:
		reason = fmt.Sprintf("has formed its yard without a member %q: check the declared members", m.self.Node)
	case seat.Dir != m.self.Dir:
		reason = replaceText(m.self.Node, seat.Dir, m.self.Dir)
	case yardID(peer.Yard, peer.Roster) != peer.YardID:
		reason = "shows a roster that does not match its yard id"
	}
	if reason != "" {
		return nil, &RefusedError{Peer: peer.Node, Reason: reason}
	}
	return peer.Roster, nil
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
		"Mount the old one; this version cannot give member %s's place to another directory yet", node, seated, came, node)
}
