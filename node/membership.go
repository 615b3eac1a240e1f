package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/membership"
)

// Requests about members between nodes: verbMembers carries a [membership.Request] to
// the authority, verbNodeStatus asks a node for its [membership.NodeStatus],
// verbPromote informs a node that it votes from now on, and verbNotifyRemoved that
// it has been removed.
const (
	verbMembers       = "members"
	verbNodeStatus    = "node_status"
	verbPromote       = "promote"
	verbNotifyRemoved = "notify_removed"
)

// membersTimeout bounds a request about members: the authority asks all of them and
// commits a change.
const membersTimeout = 4 * time.Second

// membershipAdapter implements [membership.Cluster].
type membershipAdapter struct{ *Node }

func (a membershipAdapter) Membership() (ms ledger.Membership) {
	a.raft.View(func(l *ledger.Ledger) { ms = l.Membership() })
	return ms
}

func (a membershipAdapter) Propose(ctx context.Context, c ledger.Command) error {
	r, _, err := a.scheduler.Propose(ctx, c)
	return errors.Join(err, r.Err)
}

// BootstrapMembers returns the members that formed the cluster, with the addresses of
// this node's configuration.
func (a membershipAdapter) BootstrapMembers() []ledger.Member {
	var all []ledger.Member
	for _, member := range a.id.BootstrapMembers {
		m := ledger.Member{Node: member.Node, Dir: member.Dir, State: ledger.MemberPresent}
		for _, declared := range a.cfg.Cluster.Members {
			if declared.Name == member.Node {
				m.Route, m.Raft = declared.Route, declared.Raft
			}
		}
		all = append(all, m)
	}
	return all
}

func (a membershipAdapter) Servers() []membership.Server {
	var all []membership.Server
	for _, m := range a.raft.Status().Members {
		all = append(all, membership.Server{ID: m.ID, Voter: m.Voter})
	}
	return all
}

func (a membershipAdapter) LastIndex() uint64 { return a.raft.Status().Commit }

func (a membershipAdapter) AddMember(ctx context.Context, id string, vote bool) error {
	return a.raft.AddMember(ctx, id, vote)
}

func (a membershipAdapter) RemoveVoter(ctx context.Context, id string) error {
	return a.raft.RemoveServer(ctx, id)
}

func (a membershipAdapter) Probe(addr string) (membership.JoiningNode, error) {
	peer, err := a.raft.Probe(addr)
	return membership.JoiningNode{Node: peer.Node, Dir: peer.Dir, Cluster: peer.Yard, Used: peer.YardID != ""}, err
}

func (a membershipAdapter) Routed() []string { return a.cluster.Routed() }

func (a membershipAdapter) Streams(ctx context.Context) ([]membership.StreamReplicas, error) {
	streams, err := a.cluster.StreamReplicas(ctx)
	all := make([]membership.StreamReplicas, len(streams))
	for i, s := range streams {
		all[i] = membership.StreamReplicas{Stream: s.Stream, Want: s.Want, Replicas: a.replicas(s.Replicas)}
	}
	return all, err
}

// replicas names replicas by their member IDs, also the replicas of removed servers, for
// which NATS only has a hash.
func (a membershipAdapter) replicas(in []cluster.Replica) []membership.Replica {
	ms := a.Membership()
	all := make([]membership.Replica, len(in))
	for i := range in {
		c := &in[i]
		all[i] = membership.Replica{ID: c.Identity, Leader: c.Leader, Current: c.Current, Offline: c.Offline, Lag: c.Lag}
		for n := range ms.Members {
			if id := ms.Members[n].ServerID(); c.Is(id) {
				all[i].ID = id
			}
		}
	}
	return all
}

func (a membershipAdapter) Evacuate(ctx context.Context, id string) error {
	return a.cluster.Evacuate(ctx, id)
}
func (a membershipAdapter) RemoveServer(ctx context.Context, id string) error {
	return a.cluster.RemoveServer(ctx, id)
}

func (a membershipAdapter) NodeStatus(ctx context.Context, node string) (w membership.NodeStatus, err error) {
	if node == a.cfg.Node.Name {
		return a.nodeStatus(ctx), nil
	}
	return w, a.request(ctx, node, verbNodeStatus, struct{}{}, &w)
}

func (a membershipAdapter) Promote(ctx context.Context, node, id string) error {
	return a.request(ctx, node, verbPromote, id, new(struct{}))
}

func (a membershipAdapter) NotifyRemoved(ctx context.Context, node, id string) error {
	return a.request(ctx, node, verbNotifyRemoved, id, new(struct{}))
}

// TransferAuthority transfers the authority to a member, or to the first that accepts
// it if to is "".
func (a membershipAdapter) TransferAuthority(ctx context.Context, to string) error {
	_, err := a.transferAuthority(ctx, to)
	return err
}

// transferAuthority transfers the authority to the member to, or to the first other
// member that accepts it if to is "".
func (n *Node) transferAuthority(ctx context.Context, to string) (transferReply, error) {
	from, _, _ := n.authority.current()
	candidates := []string{to}
	if to == "" {
		candidates = slices.DeleteFunc(membershipAdapter{n}.Membership().PresentNodes(), func(name string) bool { return name == from })
	} else if !n.proposer.isMember(to) {
		return transferReply{}, &cluster.APIError{Code: "404", Text: fmt.Sprintf("there is no member %q to take the authority", to)}
	}
	lastErr := error(&cluster.APIError{Code: "409", Text: "there is no other member to hand the authority to"})
	for _, name := range candidates {
		if _, _, err := n.proposer.transferAuthority(ctx, &ledger.AcquireAuthority{Owner: name, LeaseID: "transfer", LeasedUntil: "transfer"}); err != nil {
			lastErr = err
			continue
		}
		var epoch uint64
		n.raft.View(func(l *ledger.Ledger) { epoch = l.Authority().Epoch })
		return transferReply{from, name, epoch}, nil
	}
	return transferReply{}, lastErr
}

// nodeStatus returns this node's own status.
func (n *Node) nodeStatus(ctx context.Context) membership.NodeStatus {
	replicas, led := n.cluster.MetaReplicas()
	w := membership.NodeStatus{
		ID: n.id.ServerID(), Version: n.version, Applied: n.raft.Status().Applied, Running: n.agent.Running(), Led: led,
		Meta: membershipAdapter{n}.replicas(replicas), Declares: n.declaredMembers(),
	}
	if err := n.cluster.Health(ctx); err != nil {
		w.JetStream = err.Error()
	}
	return w
}

// declaredMembers returns the members of this node's configuration if they differ
// from the cluster's, else "".
func (n *Node) declaredMembers() string {
	have, declared := membershipAdapter{n}.Membership().PresentNodes(), n.cfg.members()
	slices.Sort(have)
	if slices.Equal(have, declared) {
		return ""
	}
	return strings.Join(declared, ",")
}

func (n *Node) serveNodeStatus(ctx context.Context, _ []byte) ([]byte, error) {
	return json.Marshal(n.nodeStatus(ctx))
}

// checkMemberID checks that a message is meant for this member ID. The name alone
// does not suffice: it may belong to a new data directory by now.
func (n *Node) checkMemberID(payload []byte) error {
	var id string
	if err := json.Unmarshal(payload, &id); err != nil {
		return &job.InvalidError{Reason: err.Error()}
	}
	if id != n.id.ServerID() {
		return &cluster.APIError{Code: "409", Text: "this is " + n.id.ServerID()}
	}
	return nil
}

func (n *Node) servePromote(_ context.Context, payload []byte) ([]byte, error) {
	if err := n.checkMemberID(payload); err != nil {
		return nil, err
	}
	return []byte("{}"), n.raft.Promote()
}

func (n *Node) serveNotifyRemoved(_ context.Context, payload []byte) ([]byte, error) {
	if err := n.checkMemberID(payload); err != nil {
		return nil, err
	}
	if err := n.id.MarkRemoved(); err != nil {
		return nil, err
	}
	select {
	case n.removedErr <- &consensus.RemovedError{Member: n.id.MemberID}:
	default:
	}
	return []byte("{}"), nil
}

// followMembership applies each change of the ledger's membership to this node. It
// returns when ctx ends or, with a [*consensus.RemovedError], when this node has been
// removed.
func (n *Node) followMembership(ctx context.Context) error {
	var applied uint64
	var lanes []string
	for {
		_, changed := n.raft.Applied()
		var ms ledger.Membership
		n.raft.View(func(l *ledger.Ledger) {
			ms = l.Membership()
			if have := laneIdentities(l); len(have) > 0 && !slices.Equal(have, lanes) {
				lanes = have
				n.cluster.SetLaneIdentities(lanes)
			}
		})
		if ms.Revision > applied {
			applied = ms.Revision
			if err := n.applyMembership(ms); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case err := <-n.removedErr:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}

// applyMembership stores a membership in the data directory and passes it to the NATS
// server.
func (n *Node) applyMembership(ms ledger.Membership) error {
	kept := consensus.Membership{Revision: ms.Revision}
	var peers []cluster.Peer
	for i := range ms.Members {
		m := &ms.Members[i]
		kept.Peers = append(kept.Peers, consensus.Peer{
			MemberID: consensus.MemberID{Node: m.Node, Dir: m.Dir}, Raft: m.Raft, Route: m.Route, JoinRevision: m.JoinRevision,
		})
		if m.State != ledger.MemberLeaving {
			peers = append(peers, cluster.Peer{Node: m.Node, Identity: m.ServerID(), Route: m.Route})
		}
		if m.ServerID() == n.id.ServerID() {
			n.applyLeaving(m.State == ledger.MemberLeaving)
		}
	}
	if n.cfg.Clustered() {
		n.cluster.SetPeers(peers)
	}
	if differs := n.declaredMembers(); differs != "" && n.cfg.Clustered() {
		n.log.Info("configured members differ from the cluster's, which take precedence",
			"configured", differs, "members", strings.Join(ms.PresentNodes(), ","))
	}
	return n.id.UpdateMembership(kept)
}

// applyLeaving drains this member when it is about to be removed, and resumes it when
// the removal was taken back because its replacement was not admitted.
func (n *Node) applyLeaving(leaving bool) {
	switch {
	case leaving == n.leaving:
		return
	case leaving:
		n.log.Warn("member is being removed from the cluster and takes no more work")
		n.agent.Drain()
		n.edge.Drain("this member is taken out of the yard")
	default:
		n.log.Info("removal of this member was taken back and it takes work again")
		n.drain.ifDrained(false, func() {
			n.agent.Resume()
			n.edge.Resume()
		})
	}
	n.leaving = leaving
}

// requestMembers sends a request about members to the authority, and retries while
// the authority changes.
func (n *Node) requestMembers(ctx context.Context, q membership.Request) (v membership.View, err error) {
	if !n.cfg.Clustered() {
		return v, &cluster.APIError{Code: "409", Text: "this node runs alone: it has no members; docs/guides/backup.md shows how a yard of one becomes one of three"}
	}
	ctx, cancel := context.WithTimeout(ctx, membersTimeout)
	defer cancel()
	for {
		owner, changed := n.authority.watch()
		switch owner {
		case "":
			err = errNoAuthority
		case n.cfg.Node.Name:
			v, err = n.localMembers(ctx, q)
		default:
			err = n.request(ctx, owner, verbMembers, q, &v)
		}
		var api *cluster.APIError
		if err == nil || !notProposed(err) && !(errors.As(err, &api) && api.Code == codeNoTenure) {
			return v, err
		}
		select { // the authority has changed, or is about to
		case <-changed:
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return v, &job.UnavailableError{Reason: "no authority answers", RetryAfter: time.Second}
		}
	}
}

var errNoAuthority = &cluster.APIError{Code: codeNoTenure, Text: "no authority is known"}

// localMembers serves a request about members on the authority itself.
func (n *Node) localMembers(ctx context.Context, q membership.Request) (membership.View, error) {
	if q.Verb != membership.Show {
		var restoreID string
		n.raft.View(func(l *ledger.Ledger) { _, restoreID = l.Restoring() })
		if restoreID != "" { // the ledger checks this as well, but only when the change is proposed
			return membership.View{}, &cluster.APIError{Code: "409", Text: fmt.Sprintf("%v (of %s); wait for its end, or give it up by 'yardmaster restore --abandon'", ledger.ErrRestoring, restoreID)}
		}
		if err := n.reconciler.Begin(ctx, q); err != nil {
			return membership.View{}, membersError(err)
		}
	}
	return n.reconciler.View(ctx), nil
}

func membersError(err error) error {
	var refused *membership.RefusedError
	switch {
	case errors.Is(err, membership.ErrAuthorityMoved), notProposed(err):
		return &cluster.APIError{Code: codeNoTenure, Text: err.Error()}
	case errors.Is(err, ledger.ErrMemberNotFound):
		return &cluster.APIError{Code: "404", Text: err.Error()}
	case errors.As(err, &refused), errors.Is(err, ledger.ErrMembersChanging), errors.Is(err, ledger.ErrRestoring), errors.Is(err, ledger.ErrNoChange),
		errors.Is(err, ledger.ErrMemberExists), errors.Is(err, ledger.ErrMemberCount):
		return &cluster.APIError{Code: "409", Text: err.Error()}
	}
	return err
}

func (n *Node) serveMembers(ctx context.Context, payload []byte) ([]byte, error) {
	var q membership.Request
	if err := json.Unmarshal(payload, &q); err != nil {
		return nil, &job.InvalidError{Reason: err.Error()}
	}
	if owner, _, _ := n.authority.current(); owner != n.cfg.Node.Name {
		return nil, errNoAuthority
	}
	v, err := n.localMembers(ctx, q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

// membersRequest is the body of a client's request about members.
type membersRequest struct {
	Name  string `json:"name"`
	With  string `json:"with"`
	Route string `json:"route"`
	Raft  string `json:"raft"`
	To    string `json:"to"`
}

// membersHandler returns the handler of one verb about members.
func (n *Node) membersHandler(verb string) func(context.Context, *cluster.Request) (any, error) {
	return func(ctx context.Context, r *cluster.Request) (any, error) {
		q, err := decodeRequest[membersRequest](r)
		if err != nil {
			return nil, err
		}
		for _, a := range []struct{ key, value string }{{"route", q.Route}, {"raft", q.Raft}} {
			if a.value != "" {
				if err := hostPort(a.key, a.value); err != nil {
					return nil, &job.InvalidError{Reason: err.Error()}
				}
			}
		}
		return n.requestMembers(ctx, membership.Request{Verb: verb, Name: q.Name, With: q.With, Route: q.Route, Raft: q.Raft})
	}
}

// handleTransfer transfers the authority, on whichever node the request arrives.
func (n *Node) handleTransfer(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[membersRequest](r)
	if err != nil {
		return nil, err
	}
	if owner, _, _ := n.authority.current(); q.To != "" && q.To == owner {
		return nil, &cluster.APIError{Code: "409", Text: owner + " holds the authority already"}
	}
	return n.transferAuthority(ctx, q.To)
}
