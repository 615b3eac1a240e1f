package scheduler

import (
	"context"
	"slices"
	"strings"
	"time"

	"yardmaster/job"
)

// Look is how a tenure stands: what the ledger cannot show of itself.
type Look struct {
	Epoch    uint64        `json:"epoch"`
	Pending  uint64        `json:"pending"` // records heard of and not folded
	Oldest   time.Duration `json:"oldest"`  // age of the oldest of them, in nanoseconds
	Deferred bool          `json:"deferred"`
	// Dispatching tells that jobs are started. A lane in trouble stops only
	// what lies in it.
	Dispatching bool         `json:"dispatching"`
	Reasons     []string     `json:"reasons"` // what is not as it should be
	Nodes       []NodeStatus `json:"nodes"`
	Error       string       `json:"error,omitempty"` // why there is no look
}

// NodeStatus is a member as the authority hears it.
type NodeStatus struct {
	Name        string `json:"name"`
	Incarnation uint64 `json:"incarnation"`
	Silent      bool   `json:"silent"`
	Draining    bool   `json:"draining"`
	BeatAgoMS   int64  `json:"beat_ago_ms"`
	Offers      int    `json:"offers"`
	Room        int    `json:"room"` // jobs it would take now
	Running     int    `json:"running"`

	Edge    string     `json:"edge"`    // where Overhop clients reach it; "": not told
	Credits int        `json:"credits"` // of Room, at Overhop subscriptions
	Slots   int        `json:"slots"`   // of Room, at RRQ processes
	Pools   []PoolRoom `json:"pools"`   // by runner
}

// PoolRoom is the room in a node's pool of an RRQ runner.
type PoolRoom struct {
	Runner string `json:"runner"`
	Slots  int    `json:"slots"` // free
}

// hands tells what kind of room a node has.
func (s *NodeStatus) hands(n *node) {
	free := map[string]int{}
	for runner := range n.runners {
		free[runner] = 0
	}
	for k, seat := range n.seats {
		room := seat.free()
		s.Room += room
		if k.kind == job.RRQ {
			s.Slots += room
			free[k.key] += room
		} else {
			s.Credits += room
		}
	}
	s.Pools = make([]PoolRoom, 0, len(free))
	for runner, slots := range free {
		s.Pools = append(s.Pools, PoolRoom{runner, slots})
	}
	slices.SortFunc(s.Pools, func(a, b PoolRoom) int { return strings.Compare(a.Runner, b.Runner) })
}

// State is the node's state in one word.
func (n NodeStatus) State() string {
	switch {
	case n.Silent:
		return "down"
	case n.Draining:
		return "draining"
	}
	return "up"
}

// Look asks the present tenure how it stands.
func (s *Scheduler) Look(ctx context.Context) (Look, error) {
	m := s.tenure()
	if m == nil {
		return Look{}, ErrNoTenure
	}
	answer := make(chan Look, 1)
	m.post(func() { answer <- m.look(time.Now()) })
	select {
	case l := <-answer:
		return l, nil
	case <-m.gone:
		return Look{}, ErrNoTenure
	case <-ctx.Done():
		return Look{}, ctx.Err()
	}
}

func (m *mind) look(now time.Time) Look {
	l := Look{Epoch: m.epoch, Dispatching: m.blocked == "" && m.bringing == "" && m.trusted().After(now), Reasons: m.reasons(now)}
	for _, lane := range m.lanes {
		if lane.trouble == "" && !lane.ready {
			l.Deferred = true
		}
		if lane.last >= lane.next {
			l.Pending += lane.last + 1 - lane.next
		}
		if n := m.unfolded(lane); n > 0 {
			l.Pending += uint64(n)
			l.Oldest = max(l.Oldest, now.Sub(lane.heardAt))
		}
	}
	running := map[string]int{}
	for _, f := range m.flights {
		running[f.node]++
	}
	for _, n := range m.nodes {
		s := NodeStatus{
			Name: n.name, Incarnation: n.incarnation, Silent: n.silent, Draining: n.draining,
			BeatAgoMS: now.Sub(n.beatAt).Milliseconds(), Offers: len(n.seats), Running: running[n.name], Edge: n.edge,
		}
		s.hands(n)
		l.Nodes = append(l.Nodes, s)
	}
	slices.SortFunc(l.Nodes, func(a, b NodeStatus) int { return strings.Compare(a.Name, b.Name) })
	return l
}
