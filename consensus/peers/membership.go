package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Peer is a member in the membership list of a cluster.
type Peer struct {
	MemberID
	Raft  string `json:"raft"`  // host:port, as reachable from the other members
	Route string `json:"route"` // likewise, of its NATS server
	// JoinRevision is the membership revision in which the member was added; 0:
	// it is a bootstrap member.
	JoinRevision uint64 `json:"since,omitempty"`
}

// Membership is the list of members in the cluster's ledger. Its revision
// increases with every change; 0 means that there is no list yet, and the
// bootstrap members are the members.
type Membership struct {
	Revision uint64 `json:"revision"`
	Peers    []Peer `json:"peers"`
}

// has reports whether id is in the list.
func (m *Membership) has(id MemberID) bool {
	return slices.ContainsFunc(m.Peers, func(p Peer) bool { return p.MemberID == id })
}

// incarnationBits is the number of low bits of an incarnation that count
// starts. The bits above hold the revision in which the member was added, so a
// directory that replaces another under the same name has higher incarnations
// than that one ever had.
const incarnationBits = 32

// RemovedError is returned for a directory that was removed from its cluster.
// It can never be used in that cluster again.
type RemovedError struct{ Member MemberID }

func (e *RemovedError) Error() string {
	return fmt.Sprintf("member %s was taken out of the yard, and its data directory %s with it: it cannot rejoin with this directory. "+
		"To add the host again, start the node with an empty data directory and follow the instructions in its log", e.Member.Node, e.Member.Dir)
}

// Peers returns the members as last known by this directory. Addresses of
// bootstrap members are not known until there is a membership list.
func (i *Identity) Peers() []Peer {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.record.peers()
}

// peers returns the membership list, or the bootstrap members, without addresses, if
// there is no list yet.
func (r *identityRecord) peers() []Peer {
	if r.Membership.Revision > 0 {
		return slices.Clone(r.Membership.Peers)
	}
	peers := make([]Peer, len(r.BootstrapMembers))
	for n, id := range r.BootstrapMembers {
		peers[n].MemberID = id
	}
	return peers
}

// Joined reports whether this directory was added to a cluster that had already
// formed.
func (i *Identity) Joined() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.record.JoinRevision > 0
}

// UpdateMembership stores a newer membership list, on disk first, and applies
// it to the listener. If this directory is not in the list, that is stored too,
// and the error is a [*RemovedError]. An older list is ignored.
func (i *Identity) UpdateMembership(membership Membership) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if membership.Revision <= i.record.Membership.Revision {
		return nil
	}
	previous, wasRemoved := i.record.Membership, i.record.Removed
	i.record.Membership, i.record.Removed = membership, !membership.has(i.MemberID)
	if err := i.save(); err != nil {
		i.record.Membership, i.record.Removed = previous, wasRemoved
		return err
	}
	if i.listener != nil {
		i.listener.updateMembership(membership)
	}
	if i.record.Removed {
		return &RemovedError{i.MemberID}
	}
	return nil
}

// MarkRemoved records on disk that this directory was removed from its cluster,
// even if its membership list still has it.
func (i *Identity) MarkRemoved() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.record.Removed = true
	return i.save()
}

// refreshMembership asks the other members for a newer membership list before
// any other part of the node starts: a directory that was removed while it was
// down must not contact the cluster otherwise. It does not wait longer than a
// second for an answer.
func (i *Identity) refreshMembership(ctx context.Context, log *slog.Logger) error {
	if i.record.Removed {
		return &RemovedError{i.MemberID}
	}
	if i.listener == nil {
		return nil
	}
	var newest Membership
	for _, answer := range i.listener.exchangeAll(i.listener.otherAddrs(), purposeProbe) {
		if answer.err != nil || answer.YardID != i.Yard || answer.Membership == nil {
			continue
		}
		if answer.Membership.Revision > newest.Revision {
			newest = *answer.Membership
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if newest.Revision > i.record.Membership.Revision {
		log.Info("members changed while this node was down", "revision", newest.Revision, "members", len(newest.Peers))
	}
	return i.UpdateMembership(newest)
}

// WaitingNode describes a node that waits to be added to a cluster.
type WaitingNode struct {
	MemberID
	Yard   string // name of the cluster
	YardID string // "": it belongs to no cluster, so its directory is empty
}

// Probe returns which node answers at addr. It takes at most a second.
func (l *PeerListener) Probe(addr string) (WaitingNode, error) {
	h, err := l.exchange(addr, purposeProbe)
	return WaitingNode{MemberID: h.memberID(), Yard: h.Yard, YardID: h.YardID}, err
}

// updateMembership applies a newer membership list: connections of removed
// members are closed.
func (l *PeerListener) updateMembership(membership Membership) {
	l.updateHello(func(h *hello) { h.Membership = &membership })
	l.connsMu.Lock()
	defer l.connsMu.Unlock()
	for conn := range l.conns {
		if conn.member != (MemberID{}) && !membership.has(conn.member) {
			conn.Conn.Close()
		}
	}
}

// waitPollInterval is how often a node probes while it waits to be added.
const waitPollInterval = time.Second

var errNotMember = errors.New("is not, or no longer, a member of this yard")
