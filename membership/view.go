package membership

import (
	"context"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// observation is what [Reconciler.View] has learned about all members.
type observation struct {
	statuses  map[string]NodeStatus // of the nodes that answered, by server ID
	meta      []Replica             // the servers of JetStream's meta group
	metaKnown bool                  // the meta group has a leader, which reported meta
	streams   []StreamReplicas
	lastIndex uint64 // of the Raft log
}

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
	o := observation{statuses: r.nodeStatuses(ctx, ms)}
	o.meta, o.metaKnown = reportedMeta(o.statuses)
	replicaCtx, cancel := context.WithTimeout(ctx, statusTimeout)
	var err error
	o.streams, err = r.streams(replicaCtx)
	cancel()
	v.Uncounted = uncountedStreams(o.streams, err)
	o.lastIndex = r.cluster.LastIndex()
	for i := range ms.Members {
		v.Members = append(v.Members, r.memberStatus(&ms.Members[i], &o))
	}
	return v
}

// uncountedStreams returns which streams the members' numbers of replicas leave out, or ""
// if none. err is why the streams could not be listed.
func uncountedStreams(streams []StreamReplicas, err error) string {
	if err != nil {
		return "all streams: " + err.Error()
	}
	var leaderless []string
	for _, s := range streams {
		if len(s.Replicas) == 0 {
			leaderless = append(leaderless, s.Stream)
		}
	}
	if len(leaderless) == 0 {
		return ""
	}
	return strings.Join(leaderless, ", ") + ": no leader answers"
}

// memberStatus returns the state of member m as o shows it. A member that has not
// answered has only what the ledger, Raft and JetStream know of it.
func (r *Reconciler) memberStatus(m *ledger.Member, o *observation) api.Member {
	id := m.ServerID()
	s := api.Member{
		Name: m.Node, Directory: m.Dir, State: m.State.String(), Route: m.Route, Raft: m.Raft,
		JetStream: o.jetStreamState(id), Behind: []string{},
	}
	if status, ok := o.statuses[id]; ok {
		s.Answers, s.Version, s.Running, s.Declares = true, status.Version, status.Running, status.Declares
		if status.Applied < o.lastIndex {
			s.Lag = o.lastIndex - status.Applied
		}
	}
	for _, server := range r.cluster.Servers() {
		s.Voter = s.Voter || server.ID == id && server.Voter
	}
	for _, stream := range o.streams {
		for _, replica := range stream.Replicas {
			if replica.ID != id {
				continue
			}
			s.Streams++
			if replica.Leader {
				s.Leads++
			}
			if !replica.healthy() {
				s.Behind = append(s.Behind, stream.Stream)
			}
		}
	}
	return s
}

// jetStreamState returns the state of a member's server in JetStream's meta group.
func (o *observation) jetStreamState(id string) string {
	i := slices.IndexFunc(o.meta, func(server Replica) bool { return server.ID == id })
	switch {
	case !o.metaKnown:
		return "unknown"
	case i < 0:
		return "absent"
	case o.meta[i].Offline:
		return "offline"
	case o.meta[i].Current:
		return "current"
	}
	return "behind"
}
