package membership

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// View returns the state of all members. It asks them at once, and waits at most a
// second for each.
func (r *Reconciler) View(ctx context.Context) api.Membership {
	ms := r.cluster.Membership()
	r.mu.Lock()
	v := api.Membership{Revision: ms.Revision, Change: ms.PendingChange(), Step: r.step, Outcome: r.outcome, Skew: append([]string{}, r.skew...)}
	r.mu.Unlock()
	if ms.Revision == 0 {
		ms.Members = r.cluster.BootstrapMembers()
	}
	statuses := r.nodeStatuses(ctx, ms)
	var meta []Replica
	led := false
	for _, s := range statuses {
		if s.Led {
			meta, led = s.Meta, true
		}
	}
	replicaCtx, cancel := context.WithTimeout(ctx, statusTimeout)
	streams, _ := r.streams(replicaCtx) // after an error they are not shown
	cancel()
	last := r.cluster.LastIndex()
	for i := range ms.Members {
		v.Members = append(v.Members, r.memberStatus(&ms.Members[i], statuses, meta, led, streams, last))
	}
	return v
}

// memberStatus returns the state of one member, from the statuses of the nodes by server
// ID, JetStream's meta group, and the replicas of all streams. led reports whether the
// meta group has a leader, without which meta is not known. last is the index of the last
// Raft entry.
func (r *Reconciler) memberStatus(m *ledger.Member, statuses map[string]NodeStatus, meta []Replica, led bool, streams []StreamReplicas, last uint64) api.Member {
	s := api.Member{
		Name: m.Node, Directory: m.Dir, State: m.State.String(), Route: m.Route, Raft: m.Raft,
		JetStream: "unknown", Behind: []string{},
	}
	if status, ok := statuses[m.ServerID()]; ok {
		s.Answers, s.Version, s.Running, s.Declares = true, status.Version, status.Running, status.Declares
		if status.Applied < last {
			s.Lag = last - status.Applied
		}
	}
	for _, server := range r.cluster.Servers() {
		s.Voter = s.Voter || server.ID == m.ServerID() && server.Voter
	}
	if led {
		s.JetStream = "absent"
	}
	for i := range meta {
		if c := &meta[i]; c.ID == m.ServerID() {
			switch {
			case c.Offline:
				s.JetStream = "offline"
			case c.Current:
				s.JetStream = "current"
			default:
				s.JetStream = "behind"
			}
		}
	}
	for i := range streams {
		for n := range streams[i].Replicas {
			c := &streams[i].Replicas[n]
			if c.ID != m.ServerID() {
				continue
			}
			s.Streams++
			if c.Leader {
				s.Leads++
			}
			if !c.healthy() {
				s.Behind = append(s.Behind, streams[i].Stream)
			}
		}
	}
	return s
}
