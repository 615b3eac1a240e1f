package scheduler

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
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
	Dispatching bool             `json:"dispatching"`
	Reasons     []string         `json:"reasons"` // texts of all conditions
	Nodes       []api.NodeStatus `json:"nodes"`
	Error       string           `json:"error,omitempty"` // why the status could not be read; set by callers
}

// countAvailable sets Available, Credits, Slots and Pools of s from n's slots.
func countAvailable(s *api.NodeStatus, n *node) {
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
	s.Pools = make([]api.RunnerSlots, 0, len(free))
	for runner, slots := range free {
		s.Pools = append(s.Pools, api.RunnerSlots{Runner: runner, Slots: slots})
	}
	slices.SortFunc(s.Pools, func(a, b api.RunnerSlots) int { return strings.Compare(a.Runner, b.Runner) })
}

// Status returns the status of the current tenure. Without a tenure it returns
// [ErrNotAuthority].
func (s *Scheduler) Status(ctx context.Context) (AuthorityStatus, error) {
	t := s.current()
	if t == nil {
		return AuthorityStatus{}, ErrNotAuthority
	}
	answer := make(chan AuthorityStatus, 1)
	t.loop.post(func() { answer <- t.status(time.Now()) })
	select {
	case st := <-answer:
		return st, nil
	case <-t.loop.done:
		return AuthorityStatus{}, ErrNotAuthority
	case <-ctx.Done():
		return AuthorityStatus{}, ctx.Err()
	}
}

func (t *tenure) status(now time.Time) AuthorityStatus {
	st := AuthorityStatus{Epoch: t.loop.epoch, Dispatching: t.lanes.blocked == "" && t.restoring == "" && t.lease.trusted().After(now), Reasons: t.reasons(now)}
	for _, lane := range t.lanes.all {
		if lane.problem == "" && !lane.ready {
			st.Deferred = true
		}
		if lane.lastReceived >= lane.next {
			st.Pending += lane.lastReceived + 1 - lane.next
		}
		if n := t.lanes.pendingRecords(lane); n > 0 {
			st.Pending += uint64(n)
			st.OldestPending = max(st.OldestPending, now.Sub(lane.receivedAt))
		}
	}
	running := map[string]int{}
	for _, d := range t.dispatches.running {
		running[d.node]++
	}
	for _, n := range t.capacity.nodes {
		s := api.NodeStatus{
			Name: n.name, Incarnation: n.incarnation, Silent: n.silent, Draining: n.draining,
			BeatAgoMS: now.Sub(n.heartbeatAt).Milliseconds(), Offers: len(n.slots), Running: running[n.name], Edge: n.edge,
		}
		countAvailable(&s, n)
		st.Nodes = append(st.Nodes, s)
	}
	slices.SortFunc(st.Nodes, func(a, b api.NodeStatus) int { return strings.Compare(a.Name, b.Name) })
	return st
}
