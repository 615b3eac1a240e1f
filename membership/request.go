package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Verbs of a [Request].
const (
	Show    = "members"
	Add     = "add"
	Remove  = "rm"
	Replace = "replace"
	Cancel  = "cancel"
)

// Request is an operator's request about members.
type Request struct {
	Verb string       `json:"verb"`
	By   ledger.Actor `json:"by"` // who asks
	api.MemberRequest
}

// RefusedError says why a change cannot begin, and what to do about it.
type RefusedError struct{ Text string }

func (e *RefusedError) Error() string { return e.Text }

// refusef returns a [*RefusedError].
func refusef(format string, args ...any) error { return &RefusedError{fmt.Sprintf(format, args...)} }

// ErrAuthorityMoved means that the authority was transferred first; the request
// must be sent to its new holder.
var ErrAuthorityMoved = errors.New("the authority was transferred")

// Begin checks that a change may begin and commits it. The change proceeds by
// itself; [Reconciler.View] shows its progress. Begin must be called on the
// authority's node.
//
// A change can begin only if every other member answers and is healthy, and all
// replicas of streams on those members are current: the member that joins or
// leaves must be the only thing that can go wrong.
func (r *Reconciler) Begin(ctx context.Context, q Request) error {
	ms := r.cluster.Membership()
	if ms.Revision == 0 {
		return refusef("the ledger has no list of members yet: the authority writes it within seconds of the first start")
	}
	if q.Verb == Cancel {
		if err := r.cluster.Propose(ctx, &ledger.ChangeMembers{Cancel: true, Asked: ledger.Asked{By: q.By}}); err != nil {
			return err
		}
		r.setOutcome("the change was cancelled")
		return nil
	}
	if change := ms.PendingChange(); change != "" {
		return refusef("%v: %s; wait until it ends, or cancel it with 'yardmaster cluster cancel'", ledger.ErrMembersChanging, change)
	}
	c, err := r.plan(ms, q)
	if err != nil {
		return err
	}
	if c.Leave == r.self {
		if err := r.cluster.TransferAuthority(ctx, ""); err != nil {
			return err
		}
		return ErrAuthorityMoved
	}
	if err := r.checkHealthy(ctx, ms, c.Leave); err != nil {
		return err
	}
	r.setOutcome("")
	c.SetActor(q.By)
	return r.cluster.Propose(ctx, c)
}

// setOutcome records why the last change failed or was cancelled, "" for a new change.
func (r *Reconciler) setOutcome(outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.outcome = outcome
}

// plan returns the command for a request to add, remove or replace a member, or a
// [*RefusedError]. It contacts the node that is to join.
func (r *Reconciler) plan(ms ledger.Membership, q Request) (*ledger.ChangeMembers, error) {
	old := slices.IndexFunc(ms.Members, func(m ledger.Member) bool { return m.Node == q.Name })
	switch q.Verb {
	case Add:
		if old >= 0 {
			return nil, refusef("%s is a member already; to give its place to another data directory, use 'yardmaster cluster replace %s'", q.Name, q.Name)
		}
		if len(ms.Members) >= ledger.MaxMembers {
			return nil, refusef("the yard has %d members, and the maximum is %d", len(ms.Members), ledger.MaxMembers)
		}
		joiner, err := r.probe(q.Name, q.Route, q.Raft)
		return &ledger.ChangeMembers{Join: joiner}, err
	case Remove, Replace:
		if old < 0 {
			return nil, &api.Error{Code: api.CodeNotFound, Text: fmt.Sprintf("there is no member %q; the members are %s", q.Name, strings.Join(ms.PresentNodes(), ", "))}
		}
	default:
		return nil, refusef("unknown operation %q on members", q.Verb)
	}
	leaving := &ms.Members[old]
	if q.Verb == Remove {
		if len(ms.Members) <= ledger.MinMembers {
			return nil, refusef("the yard has %d members, and the minimum is %d: add one first, or replace %s with 'yardmaster cluster replace %s'",
				len(ms.Members), ledger.MinMembers, q.Name, q.Name)
		}
		return &ledger.ChangeMembers{Leave: leaving.ServerID()}, nil
	}
	if slices.Contains(r.cluster.Routed(), leaving.ServerID()) {
		return nil, refusef("%s is running with its data directory %s: it needs no replacement; stop it first to replace it", q.Name, leaving.Dir)
	}
	name, route, raft := cmp.Or(q.With, q.Name), q.Route, q.Raft
	if name == q.Name {
		route, raft = cmp.Or(route, leaving.Route), cmp.Or(raft, leaving.Raft)
	}
	joiner, err := r.probe(name, route, raft)
	if err == nil && joiner.Dir == leaving.Dir {
		err = refusef("%s has its data directory %s: it needs no replacement", q.Name, leaving.Dir)
	}
	return &ledger.ChangeMembers{Join: joiner, Leave: leaving.ServerID()}, err
}

// probe contacts the node that waits to join at the address raft and returns it as a
// member. It returns a [*RefusedError] if no node answers, if the node and this one refuse
// each other, or if the node has another name, is configured for another yard, or belongs to
// one already.
func (r *Reconciler) probe(name, route, raft string) (*ledger.Member, error) {
	if name == "" || route == "" || raft == "" {
		return nil, refusef("name the member and both of its addresses: cluster add NAME --route HOST:PORT --raft HOST:PORT")
	}
	peer, err := r.cluster.Probe(raft)
	refused, isRefused := errors.AsType[*consensus.RefusedError](err)
	switch {
	case isRefused:
		return nil, refusef("the node at %s %s", raft, refused.Reason)
	case err != nil:
		return nil, refusef("no node answers at %s (%v): start %s with an empty data directory and all members in its configuration, then try again", raft, err, name)
	case peer.Node != name:
		return nil, refusef("the node at %s is %q, not %q", raft, peer.Node, name)
	case peer.Yard != r.name:
		return nil, refusef("%s is configured for yard %q, this is %q: set cluster.name", name, peer.Yard, r.name)
	case peer.YardID != "":
		return nil, refusef("%s's data directory %s belongs to a yard already: start it with an empty one", name, peer.Dir)
	}
	return &ledger.Member{Node: name, Dir: peer.Dir, Route: route, Raft: raft}, nil
}

// checkHealthy returns a [*RefusedError] unless all members are healthy and their
// replicas are current. It leaves out the member with the server ID except; "" is none.
func (r *Reconciler) checkHealthy(ctx context.Context, ms ledger.Membership, except string) error {
	statuses := r.nodeStatuses(ctx, ms)
	last := r.cluster.LastIndex()
	for i := range ms.Members {
		m := &ms.Members[i]
		if m.ServerID() == except {
			continue
		}
		s, ok := statuses[m.ServerID()]
		switch {
		case !ok:
			return refusef("member %s does not answer: members can only change while all others are healthy; start it, or remove it first if it is lost", m.Node)
		case s.JetStream != "":
			return refusef("member %s is not healthy (%s): members can only change while all others are", m.Node, s.JetStream)
		case s.Applied+16*maxJoinLag < last:
			return refusef("member %s is behind, at %d of %d entries: wait until it has caught up", m.Node, s.Applied, last)
		}
	}
	replicaCtx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	streams, err := r.streams(replicaCtx)
	if err != nil {
		return refusef("the state of the streams is unknown (%v): try again", err)
	}
	for _, s := range streams {
		if len(s.Replicas) == 0 {
			return refusef("stream %s has no leader that answers: wait until it has one", s.Stream)
		}
		for _, replica := range s.Replicas {
			if replica.ID != except && !replica.healthy() {
				return refusef("the replica of stream %s on %s is not current: wait until it is", s.Stream, replica.ID)
			}
		}
	}
	return nil
}
