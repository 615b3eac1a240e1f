package scheduler

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// AuthorityStatus is the state of a tenure that the ledger does not hold.
type AuthorityStatus struct {
	Epoch         uint64        `json:"epoch"`
	Pending       uint64        `json:"pending"`  // records received and not ingested
	OldestPending time.Duration `json:"oldest"`   // age of the oldest of them, in nanoseconds
	Deferred      bool          `json:"deferred"` // a lane is not verified yet
	// Dispatching reports whether jobs are started. A lane with a problem stops
	// only its own jobs.
	Dispatching bool       `json:"dispatching"`
	Reasons     []string   `json:"reasons"` // texts of all conditions
	Nodes       []NodeView `json:"nodes"`
	Error       string     `json:"error,omitempty"` // why the status could not be read; set by callers
}

// NodeView is the authority's view of a member.
type NodeView struct {
	Name        string `json:"name"`
	Incarnation uint64 `json:"incarnation"`
	Silent      bool   `json:"silent"` // heartbeats are missing
	Draining    bool   `json:"draining"`
	BeatAgoMS   int64  `json:"beat_ago_ms"` // milliseconds since its last heartbeat
	Offers      int    `json:"offers"`      // number of its slots
	Available   int    `json:"room"`        // jobs that could be placed on it now
	Running     int    `json:"running"`     // its running dispatches

	Edge    string     `json:"edge"`    // address of its edge; "": not known
	Credits int        `json:"credits"` // the part of Available at Overhop subscriptions
	Slots   int        `json:"slots"`   // the part of Available at RRQ processes
	Pools   []PoolView `json:"pools"`   // by runner
}

// PoolView is the free capacity of a node for an RRQ runner.
type PoolView struct {
	Runner string `json:"runner"`
	Slots  int    `json:"slots"` // free
}

// countAvailable sets Available, Credits, Slots and Pools from n's slots.
func (s *NodeView) countAvailable(n *node) {
	free := map[string]int{}
	for runner := range n.runners {
		free[runner] = 0
	}
	for k, slot := range n.slots {
		available := slot.available()
		s.Available += available
		if k.kind == job.RRQ {
			s.Slots += available
			free[k.key] += available
		} else {
			s.Credits += available
		}
	}
	s.Pools = make([]PoolView, 0, len(free))
	for runner, slots := range free {
		s.Pools = append(s.Pools, PoolView{runner, slots})
	}
	slices.SortFunc(s.Pools, func(a, b PoolView) int { return strings.Compare(a.Runner, b.Runner) })
}

// State returns the node's state in one word: down, draining or up.
func (n NodeView) State() string {
	switch {
	case n.Silent:
		return "down"
	case n.Draining:
		return "draining"
	}
	return "up"
}

// Status returns the status of the current tenure. Without a tenure it returns
// [ErrNotAuthority].
func (s *Scheduler) Status(ctx context.Context) (AuthorityStatus, error) {
	t := s.current()
	if t == nil {
		return AuthorityStatus{}, ErrNotAuthority
	}
	answer := make(chan AuthorityStatus, 1)
	t.post(func() { answer <- t.status(time.Now()) })
	select {
	case st := <-answer:
		return st, nil
	case <-t.done:
		return AuthorityStatus{}, ErrNotAuthority
	case <-ctx.Done():
		return AuthorityStatus{}, ctx.Err()
	}
}

func (t *tenure) status(now time.Time) AuthorityStatus {
	st := AuthorityStatus{Epoch: t.epoch, Dispatching: t.blocked == "" && t.restoring == "" && t.trusted().After(now), Reasons: t.reasons(now)}
	for _, lane := range t.lanes {
		if lane.problem == "" && !lane.ready {
			st.Deferred = true
		}
		if lane.lastReceived >= lane.next {
			st.Pending += lane.lastReceived + 1 - lane.next
		}
		if n := t.pendingRecords(lane); n > 0 {
			st.Pending += uint64(n)
			st.OldestPending = max(st.OldestPending, now.Sub(lane.receivedAt))
		}
	}
	running := map[string]int{}
	for _, d := range t.dispatches {
		running[d.node]++
	}
	for _, n := range t.nodes {
		s := NodeView{
			Name: n.name, Incarnation: n.incarnation, Silent: n.silent, Draining: n.draining,
			BeatAgoMS: now.Sub(n.heartbeatAt).Milliseconds(), Offers: len(n.slots), Running: running[n.name], Edge: n.edge,
		}
		s.countAvailable(n)
		st.Nodes = append(st.Nodes, s)
	}
	slices.SortFunc(st.Nodes, func(a, b NodeView) int { return strings.Compare(a.Name, b.Name) })
	return st
}
