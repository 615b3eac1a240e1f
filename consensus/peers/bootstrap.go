package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
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

// Config describes the node that is to be identified. Package node/config has checked it.
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
	// Secret is the same on all members; "": none, and anyone who reaches the raft port
	// without TLS can act as a member.
	Secret string

	// Listener is used instead of Listen if it is not nil.
	Listener net.Listener
	// Route is the address of this member's NATS server for other members. It
	// is only used in the hint on how to add this node.
	Route string
	// OnWaiting, if not nil, is called in every round with the reasons why this
	// node still waits.
	OnWaiting func(reasons []string)
}

// withDefaults returns c with the default name of the yard, and this node as its only
// member if none is declared.
func (c Config) withDefaults() Config {
	c.Yard = cmp.Or(c.Yard, "yard")
	if len(c.Members) == 0 {
		c.Members = []Member{{Name: c.Node, Addr: c.Listen}}
	}
	return c
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
		id.listener = newPeerListener(ln, cfg.hello(id), cfg.Members, cfg.Certificates, cfg.Secret, log)
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

// listen opens the raft port. It returns nil for a single node without a raft port.
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

// memberNames returns the names of members, sorted.
func memberNames(members []Member) []string {
	var names []string
	for _, m := range members {
		names = append(names, m.Name)
	}
	slices.Sort(names)
	return names
}

// bootstrapOrJoin waits until the cluster is determined that a node belongs to whose
// data directory has none yet, records it in id, and announces it to other members. A
// node that declares no other members forms a cluster of its own at once.
func bootstrapOrJoin(ctx context.Context, cfg Config, id *Identity, log *slog.Logger) error {
	found := bootstrapResult{members: []MemberID{id.MemberID}}
	if len(cfg.Members) > 1 {
		others := slices.DeleteFunc(slices.Clone(cfg.Members), func(m Member) bool { return m.Name == id.Node })
		b := &bootstrapper{cfg: cfg, self: id.MemberID, others: others, listener: id.listener}
		var err error
		if found, err = b.wait(ctx, log); err != nil {
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
	others   []Member // the declared members without this node
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

// round probes every other member once. It returns this node's cluster if that is
// determined, or else which members are missing and why. If a cluster has formed
// already, it must have this node as a member. Otherwise the nodes form one in two
// steps: a node that reaches all others announces a plan, the id of the cluster of
// these nodes, and the cluster is determined when all of them announce the same plan.
func (b *bootstrapper) round() (bootstrapResult, []string, error) {
	addrs := make([]string, len(b.others))
	for i, peer := range b.others {
		addrs[i] = peer.Addr
	}
	ids := []MemberID{b.self}
	var missing []string
	agreed := true
	for i, answer := range b.listener.exchangeAll(addrs, purposeProbe) {
		if answer.err == nil && answer.formed() {
			found, hint, err := b.joinFormed(&answer.hello)
			if err != nil || found.members != nil {
				return found, nil, err
			}
			b.waitsForAdd = true
			if !slices.Contains(missing, hint) { // several members give the same hint
				missing = append(missing, hint)
			}
			continue
		}
		if reason := b.mismatch(b.others[i], &answer); reason != "" {
			missing = append(missing, b.others[i].Name+": "+reason)
			continue
		}
		ids = append(ids, answer.memberID())
		agreed = agreed && answer.Plan != "" && answer.Plan == b.plan
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

// announcePlan sends plan, the id of the cluster that this node would form, with
// every hello from now on; "" withdraws it.
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
	if listed, ok := peer.memberNamed(b.self.Node); ok {
		return bootstrapResult{}, replaceHint(b.self.Node, listed.Dir, b.self.Dir), nil
	}
	return bootstrapResult{}, b.addHint(), nil
}

// addHint returns the hint on how to add this node to a cluster that has
// formed.
func (b *bootstrapper) addHint() string {
	const placeholder = "HOST:PORT"
	raft, route := placeholder, cmp.Or(b.cfg.Route, placeholder)
	for _, member := range b.cfg.Members {
		if member.Name == b.self.Node {
			raft = cmp.Or(member.Addr, placeholder)
		}
	}
	return fmt.Sprintf("the yard has formed without a member %q: add it with 'yardmaster cluster add %s --route %s --raft %s' at any member",
		b.self.Node, b.self.Node, route, raft)
}

// mismatch returns why a declared member that has not formed a cluster cannot form one
// with this node yet, given its answer to a probe; "" if it can.
func (b *bootstrapper) mismatch(peer Member, answer *helloResult) string {
	switch {
	case answer.err != nil:
		return answer.err.Error()
	case answer.Yard != b.cfg.Yard:
		return fmt.Sprintf("is declared in yard %q, not %q", answer.Yard, b.cfg.Yard)
	case answer.Node != peer.Name:
		return fmt.Sprintf("%s answers as %q", peer.Addr, answer.Node)
	case !slices.Equal(answer.Members, memberNames(b.cfg.Members)):
		return fmt.Sprintf("declares other members (%s)", strings.Join(answer.Members, ", "))
	}
	return ""
}

// replaceHint returns the hint for a node that presents another data directory than
// the one with which it is a member. Both are ids of directories, see [MemberID].
func replaceHint(node, memberDir, presentedDir string) string {
	return fmt.Sprintf("member %s belongs to data directory %s, but came with %s: its old directory is lost or another one was mounted. "+
		"Mount the old one, or if it is lost, replace it by this one with 'yardmaster cluster replace %s' at any other member", node, memberDir, presentedDir, node)
}
