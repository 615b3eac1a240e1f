package peers

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

	"github.com/yardmaster-dev/yardmaster/internal/certs"
)

const (
	pollInterval    = 200 * time.Millisecond
	logMissingAfter = 3 * time.Second
)

// Member is a declared member of a cluster.
type Member struct {
	Name string
	Addr string // host:port of its raft port, as reachable from the other members
}

// Config describes the node that is to be identified.
type Config struct {
	Yard    string   // the yard as people call it; default "yard"
	Node    string   // name of this member: lower case letters, digits, '-'
	Dir     string   // data directory; created if missing
	Listen  string   // host:port of the raft port; "" only for a single node
	Members []Member // all declared members, including this one; none or one: a single node

	// Build is the build that this member runs.
	Build Build
	// Certificates are the members' certificates; nil: no TLS.
	Certificates *certs.Store

	// Listener is used instead of Listen if it is not nil.
	Listener net.Listener
	// Route is the address of this member's NATS server for other members. It
	// is only used in the hint on how to add this node.
	Route string
	// OnWaiting, if not nil, is called in every round with the reasons why this
	// node still waits.
	OnWaiting func(reasons []string)
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

// Validate checks what can be checked without contacting other members.
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
		return errors.New("a member needs a raft port to listen on")
	}
	return nil
}

// Identify locks the data directory, opens the raft port and returns once this
// node belongs to a cluster: immediately if it already did or is a single node,
// else when all declared members are present, or when a cluster that has
// already formed adds this directory, for which an operator has to ask. It
// refuses a directory that does not belong to the node ([*RefusedError]) or
// that was removed from its cluster ([*RemovedError]), and stops waiting when
// ctx ends.
//
// The caller closes the Identity after everything that uses its listener.
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
		id.listener = newPeerListener(ln, cfg.hello(id), cfg.Members, cfg.Certificates, log)
	}
	if id.Yard != "" {
		err = id.refreshMembership(ctx, log)
	} else if err = bootstrapOrJoin(ctx, cfg, id, log); err == nil {
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

// hello returns this node's hello, without its state at run time.
func (c Config) hello(id *Identity) hello {
	h := hello{
		Yard: c.Yard, Node: id.Node, Dir: id.Dir, YardID: id.Yard, BootstrapMembers: id.BootstrapMembers,
		Members: memberNames(c.Members), Build: c.Build,
	}
	if m := id.record.Membership; m.Revision > 0 {
		h.Membership = &m
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

// bootstrapOrJoin determines the cluster of a node that has none, and stores
// it.
func bootstrapOrJoin(ctx context.Context, cfg Config, id *Identity, log *slog.Logger) error {
	found := bootstrapResult{members: []MemberID{id.MemberID}}
	if len(cfg.Members) > 1 {
		m := &bootstrapper{cfg: cfg, self: id.MemberID, listener: id.listener}
		var err error
		if found, err = m.wait(ctx, log); err != nil {
			return err
		}
	}
	if err := id.bind(found.members, found.membership); err != nil {
		return err
	}
	if id.listener != nil {
		id.listener.updateHello(func(h *hello) {
			h.YardID, h.BootstrapMembers = id.Yard, id.BootstrapMembers
			if found.membership.Revision > 0 {
				h.Membership = &found.membership
			}
		})
	}
	return nil
}

// bootstrapResult is the cluster that a node belongs to.
type bootstrapResult struct {
	members    []MemberID
	membership Membership // if the cluster had formed before
}

// bootstrapper finds the members of a cluster that has not formed.
type bootstrapper struct {
	cfg      Config
	self     MemberID
	listener *PeerListener
	plan     string // last plan announced

	waitsForAdd bool // a cluster that has formed must add this node first
}

// wait probes all other members repeatedly until the cluster is determined.
// While a cluster that has formed has not added this node, it probes less
// often.
func (b *bootstrapper) wait(ctx context.Context, log *slog.Logger) (bootstrapResult, error) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	lastLogged := time.Now()
	for {
		found, missing, err := b.round()
		if err != nil || found.members != nil {
			return found, err
		}
		if b.cfg.OnWaiting != nil {
			b.cfg.OnWaiting(missing)
		}
		if b.waitsForAdd {
			tick.Reset(waitPollInterval)
		}
		if time.Since(lastLogged) >= logMissingAfter && len(missing) > 0 {
			lastLogged = time.Now()
			log.Info("waiting for members before the yard can form", "missing", strings.Join(missing, "; "))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return bootstrapResult{}, fmt.Errorf("yard did not form, missing %s: %w", strings.Join(missing, "; "), ctx.Err())
		}
	}
}

// round probes every other member once. It returns the cluster if it is
// determined, or else which members are missing and why.
func (b *bootstrapper) round() (bootstrapResult, []string, error) {
	answers := b.probeAll()
	ids := []MemberID{b.self}
	var missing []string
	agreed := true
	for i, peer := range b.cfg.Members {
		if peer.Name == b.self.Node {
			continue
		}
		a := &answers[i]
		if a.err == nil && a.formed() {
			found, hint, err := b.joinFormed(&a.hello)
			if err != nil || found.members != nil {
				return found, nil, err
			}
			if b.waitsForAdd = true; !slices.Contains(missing, hint) {
				missing = append(missing, hint)
			}
			continue
		}
		if reason := b.mismatch(peer, a); reason != "" {
			missing = append(missing, peer.Name+": "+reason)
			continue
		}
		ids = append(ids, a.memberID())
		agreed = agreed && a.Plan != "" && a.Plan == b.plan
	}
	if len(missing) > 0 {
		b.announcePlan("")
		return bootstrapResult{}, missing, nil
	}
	sortMembers(ids)
	plan := yardID(b.cfg.Yard, ids)
	if agreed && plan == b.plan {
		return bootstrapResult{members: ids}, nil, nil
	}
	b.announcePlan(plan)
	return bootstrapResult{}, nil, nil
}

// probeResult is the hello of a member, or the error of probing it.
type probeResult struct {
	hello
	err error
}

func (b *bootstrapper) probeAll() []probeResult {
	answers := make([]probeResult, len(b.cfg.Members))
	var asks sync.WaitGroup
	for i, peer := range b.cfg.Members {
		if peer.Name == b.self.Node {
			continue
		}
		asks.Go(func() { answers[i].hello, answers[i].err = b.listener.fetchHello(peer.Addr) })
	}
	asks.Wait()
	return answers
}

func (b *bootstrapper) announcePlan(plan string) {
	b.plan = plan
	b.listener.updateHello(func(h *hello) { h.Plan = plan })
}

// joinFormed returns the cluster of a member that has formed, if this node is a
// member of it, or else a hint on what an operator can do.
func (b *bootstrapper) joinFormed(peer *hello) (found bootstrapResult, hint string, err error) {
	reason := ""
	switch {
	case peer.Yard != b.cfg.Yard:
		reason = fmt.Sprintf("belongs to yard %q, this node is declared in yard %q", peer.Yard, b.cfg.Yard)
	case yardID(peer.Yard, peer.BootstrapMembers) != peer.YardID:
		reason = "reports bootstrap members that do not match its yard id"
	}
	if reason != "" {
		return bootstrapResult{}, "", &RefusedError{Peer: peer.Node, Reason: reason}
	}
	if peer.hasMember(b.self) {
		if peer.Membership != nil {
			found.membership = *peer.Membership
		}
		found.members = peer.BootstrapMembers
		return found, "", nil
	}
	if want, known := peer.memberNamed(b.self.Node); known {
		return bootstrapResult{}, replaceHint(b.self.Node, want.Dir, b.self.Dir), nil
	}
	return bootstrapResult{}, b.addHint(), nil
}

// addHint returns the hint on how to add this node to a cluster that has
// formed.
func (b *bootstrapper) addHint() string {
	raft, route := "HOST:PORT", "HOST:PORT"
	for _, member := range b.cfg.Members {
		if member.Name == b.self.Node && member.Addr != "" {
			raft = member.Addr
		}
	}
	if b.cfg.Route != "" {
		route = b.cfg.Route
	}
	return fmt.Sprintf("the yard has formed without a member %q: add it with 'yardmaster cluster add %s --route %s --raft %s' at any member",
		b.self.Node, b.self.Node, route, raft)
}

// mismatch returns why a member that has not formed does not count yet, or "".
func (b *bootstrapper) mismatch(peer Member, a *probeResult) string {
	switch {
	case a.err != nil:
		return a.err.Error()
	case a.Yard != b.cfg.Yard:
		return fmt.Sprintf("is declared in yard %q, not %q", a.Yard, b.cfg.Yard)
	case a.Node != peer.Name:
		return fmt.Sprintf("%s answers as %q", peer.Addr, a.Node)
	case !slices.Equal(a.Members, memberNames(b.cfg.Members)):
		return fmt.Sprintf("declares other members (%s)", strings.Join(a.Members, ", "))
	}
	return ""
}

// replaceHint returns the hint for a member that came with another data
// directory than the one the cluster knows.
func replaceHint(node, wantDir, gotDir string) string {
	return fmt.Sprintf("member %s belongs to data directory %s, but came with %s: its old directory is lost or another one was mounted. "+
		"Mount the old one, or if it is lost, replace it by this one with 'yardmaster cluster replace %s' at any other member", node, wantDir, gotDir, node)
}
