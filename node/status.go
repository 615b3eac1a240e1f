package node

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"yardmaster/cluster"
	"yardmaster/edge"
	"yardmaster/ledger"
	"yardmaster/runnerpool"
	"yardmaster/scheduler"
)

// verbLook asks the authority how it stands.
const verbLook = "look"

// lookTime is how long the authority may take to answer that.
const lookTime = 700 * time.Millisecond

// Status is the node's and, as far as it can see, the yard's state.
type Status struct {
	Node          string                  `json:"node"`
	Version       string                  `json:"version"`
	Mode          string                  `json:"mode"` // single or cluster
	Uptime        int64                   `json:"uptime_seconds"`
	HTTP          string                  `json:"http"` // host:port; "" if there is no such door
	Members       []MemberStatus          `json:"members"`
	Raft          RaftStatus              `json:"raft"`
	Authority     AuthorityStatus         `json:"authority"`
	Lanes         []LaneStatus            `json:"lanes"`
	Backlog       ledger.SnapshotBacklog  `json:"backlog"`
	HeldKeys      int                     `json:"held_keys"` // of guards, at most ledger.MaxHeldKeys
	OutboxBytes   int                     `json:"outbox_bytes"`
	StaleOutcomes uint64                  `json:"stale_outcomes"`
	Nodes         []scheduler.NodeStatus  `json:"nodes"` // as the authority hears them
	Pools         []runnerpool.PoolStatus `json:"pools"`
	Workers       WorkerStatus            `json:"workers"`
	Scrub         ScrubStatus             `json:"scrub"`
	Drain         *DrainStatus            `json:"drain,omitempty"` // null: the node takes work
	Readiness     ReadinessStatus         `json:"readiness"`
}

// MemberStatus is a member as this node knows it.
type MemberStatus struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Voter   bool   `json:"voter"`
	Leader  bool   `json:"leader"`
	State   string `json:"state"` // up, draining, down, or unknown while there is no authority
	// What this node has heard of the member at their last talk over Raft's port.
	Version string `json:"version"`           // of its program; "" if it was not heard
	TLS     bool   `json:"tls"`               // that talk was encrypted
	Refused string `json:"refused,omitempty"` // why the two do not talk
}

// RaftStatus is agreement as it looks from this node.
type RaftStatus struct {
	State     string `json:"state"`
	Leader    string `json:"leader"`
	Term      uint64 `json:"term"`
	Applied   uint64 `json:"applied"`
	Last      uint64 `json:"last"`
	ContactMS int64  `json:"contact_ms"` // since the leader was heard; -1: never
}

// AuthorityStatus is the lease.
type AuthorityStatus struct {
	Owner       string    `json:"owner"`
	LeaseID     string    `json:"lease_id"`
	Epoch       uint64    `json:"epoch"`
	LeasedUntil time.Time `json:"leased_until"`
	Expired     bool      `json:"expired"`
}

// LaneStatus is a job lane.
type LaneStatus struct {
	Lane   int    `json:"lane"`
	Stream string `json:"stream"`
	Leader string `json:"leader"` // member; "" if it has none that answers and hears a majority
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Cursor uint64 `json:"cursor"`
	Lag    uint64 `json:"lag"` // accepted and not folded

	full bool // it has no room for another job
}

// WorkerStatus counts this node's Overhop connections.
type WorkerStatus struct {
	Connections   int `json:"connections"`
	Registered    int `json:"registered"`
	Subscriptions int `json:"subscriptions"`
	Credits       int `json:"credits"` // jobs they would take now
}

// ReadinessStatus tells accepting and dispatching apart.
type ReadinessStatus struct {
	ledger.Readiness
	Accepting   bool `json:"accepting"`
	Dispatching bool `json:"dispatching"`
	// Warnings do not make the node unready, and want somebody's hand before
	// they do worse.
	Warnings []string `json:"warnings,omitempty"`
}

// status gathers everything there is to say.
func (n *Node) status(ctx context.Context) Status {
	raft := n.raft.Status()
	s := Status{
		Node: n.cfg.Node.Name, Version: n.version, Mode: "single", Uptime: int64(time.Since(n.began).Seconds()),
		Raft: RaftStatus{
			State: raft.State, Leader: raft.Leader, Term: raft.Term, Applied: raft.Applied, Last: raft.Last,
			ContactMS: raft.Contact.Milliseconds(),
		},
		Pools: n.runners.Status(), HTTP: n.httpAddr, Scrub: n.scrubStatus(), Drain: n.drainStatus(),
	}
	if raft.Contact < 0 {
		s.Raft.ContactMS = -1
	}
	if n.cfg.Clustered() {
		s.Mode = "cluster"
	}
	counts := n.edge.Counts()
	s.Workers = WorkerStatus{counts.Connections, counts.Registered, counts.Subscriptions, counts.Credits}
	look := n.look(ctx)
	s.Nodes = look.Nodes
	s.Lanes = n.laneStatus(ctx)
	s.Readiness = n.readiness(ctx, look, s.Lanes)
	n.raft.View(func(l *ledger.Ledger) {
		a, view := l.Authority(), l.Snapshot(ledger.Surroundings{Now: time.Now()}) // the ledger's own time stands still without a quorum
		s.Authority = AuthorityStatus{a.Owner, a.LeaseID, a.Epoch, a.Until, view.Authority.Stale}
		s.HeldKeys, s.OutboxBytes, s.StaleOutcomes = l.HeldKeys(), l.OutboxBytes(), l.Stale()
		s.Backlog = view.Backlog
	})
	up := map[string]string{}
	for _, heard := range look.Nodes {
		up[heard.Name] = heard.State()
	}
	for _, m := range raft.Members {
		state, known := up[m.Name]
		switch {
		case look.Error != "":
			state = "unknown"
		case !known:
			state = "down"
		}
		s.Members = append(s.Members, MemberStatus{Name: m.Name, Address: m.Addr, Voter: m.Voter, Leader: m.Name == raft.Leader, State: state})
	}
	n.tellTalks(s.Members)
	return s
}

// readiness is the snapshot's, told apart.
func (n *Node) readiness(ctx context.Context, look scheduler.Look, lanes []LaneStatus) ReadinessStatus {
	sound := n.messages.Health(ctx)
	if !n.cfg.Clustered() && laneAnswers(lanes) {
		sound = nil // a stream that is just being made looks to a lone server like one that was lost
	}
	r := ReadinessStatus{Dispatching: look.Error == "" && look.Dispatching, Warnings: append(n.certificateWarnings(time.Now()), n.drainWarnings()...)}
	accepting, why := acceptance(sound, lanes)
	r.Accepting = accepting && n.keeper.Shut() == ""
	n.raft.View(func(l *ledger.Ledger) {
		s := n.surroundings(l, look)
		s.Reasons = append(s.Reasons, why...)
		r.Readiness = l.Snapshot(s).Readiness
	})
	return r
}

// acceptance tells whether this node takes jobs in, and if not, why. Before
// there are lanes something else says so.
func acceptance(sound error, lanes []LaneStatus) (accepting bool, why []string) {
	if sound != nil {
		why = append(why, fmt.Sprintf("%v: this node accepts no jobs until it is; others may", sound))
	}
	if len(lanes) > 0 && !laneAnswers(lanes) {
		why = append(why, "no lane has a leader that this node hears: it accepts no jobs until one has")
	}
	return sound == nil && slices.ContainsFunc(lanes, LaneStatus.accepts), why
}

// accepts tells whether a job that is published now would be stored. That a lane
// is full the authority says.
func (l LaneStatus) accepts() bool { return l.Leader != "" && !l.full }

func laneAnswers(lanes []LaneStatus) bool {
	for _, l := range lanes {
		if l.Leader != "" {
			return true
		}
	}
	return false
}

// laneTime is how long a lane's leader may take to tell how it stands.
const laneTime = 400 * time.Millisecond

// laneStatus asks all lanes at once: one without a leader holds up none.
func (n *Node) laneStatus(ctx context.Context) []LaneStatus {
	ctx, cancel := context.WithTimeout(ctx, laneTime)
	defer cancel()
	var cursors []ledger.LaneCursor
	n.raft.View(func(l *ledger.Ledger) { cursors = l.Lanes() })
	status := make([]LaneStatus, len(cursors))
	var asking sync.WaitGroup
	for i, c := range cursors {
		s := &status[i]
		*s = LaneStatus{Lane: i, Stream: cluster.LaneStream(uint8(i)), Cursor: c.Cursor}
		asking.Go(func() {
			info, err := n.messages.LaneInfo(ctx, uint8(s.Lane))
			if err != nil || !info.Quorum {
				return // no leader answers, or one that was cut off: shown as none
			}
			s.Leader, s.First, s.Last = info.Leader, info.First, info.Last
			s.full = scheduler.Full(info.Bytes, uint64(max(info.MaxBytes, 0)))
			if s.Last > s.Cursor {
				s.Lag = s.Last - s.Cursor
			}
		})
	}
	asking.Wait()
	return status
}

// look asks the authority how it stands; without one, that is the answer.
func (n *Node) look(ctx context.Context) scheduler.Look {
	if text := n.noQuorum(); text != "" {
		return scheduler.Look{Error: text}
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	owner, _, known := n.watch.authority()
	if why := unknownOwner(known); why != "" {
		return scheduler.Look{Error: why}
	}
	if owner == n.cfg.Node.Name {
		return n.lookHere(ctx)
	}
	var l scheduler.Look
	raw, err := n.fleet.Request(ctx, owner, verbLook, nil)
	if err == nil {
		err = json.Unmarshal(raw, &l)
	}
	if err != nil {
		l.Error = "the authority, " + owner + ", does not answer: " + plainly(err)
	}
	return l
}

// noQuorum tells why nothing can be agreed on; "" if, as far as this node knows,
// it can.
func (n *Node) noQuorum() string {
	raft := n.raft.Status()
	if raft.Leader != "" {
		return ""
	}
	voters := 0
	for _, m := range raft.Members {
		if m.Voter {
			voters++
		}
	}
	return fmt.Sprintf("no quorum: this node hears no Raft leader, for which %d of %d members have to reach each other", voters/2+1, voters)
}

func unknownOwner(known bool) string {
	if known {
		return ""
	}
	return "no authority is known to this node: the Raft leader takes it within seconds"
}

// lookHere asks this node, which the ledger says is the authority.
func (n *Node) lookHere(ctx context.Context) scheduler.Look {
	l, err := n.mind.Look(ctx)
	if err != nil {
		l.Error = "this node holds the lease and does not decide yet, or no more: that passes within seconds"
	}
	l.Reasons = append(l.Reasons, n.skew()...)
	return l
}

func (n *Node) serveLook(ctx context.Context, _ []byte) ([]byte, error) {
	l, err := n.mind.Look(ctx)
	if err != nil {
		return nil, err
	}
	l.Reasons = append(l.Reasons, n.skew()...)
	return json.Marshal(l)
}

// skew is where who votes, who keeps streams and who is a member differ.
func (n *Node) skew() []string {
	if n.roll == nil {
		return nil
	}
	return n.roll.Reasons()
}

// unmade tells that the yard has never had its streams. A ledger that has read
// nothing yet does not know.
func unmade(l *ledger.Ledger) bool { return l.Index() > 0 && !l.StreamsMade() }

// surroundings is what the snapshot of l needs to know from outside.
func (n *Node) surroundings(l *ledger.Ledger, look scheduler.Look) ledger.Surroundings {
	s := ledger.Surroundings{
		Now: time.Now(), PendingEvents: look.Pending, OldestPending: look.Oldest, Deferred: look.Deferred, Reasons: look.Reasons,
	}
	if look.Error != "" {
		s.Reasons = append(s.Reasons, look.Error)
	}
	if unmade(l) {
		s.Reasons = append(s.Reasons, "the yard's streams are not made yet: that takes all members, once")
	}
	s.Reasons = append(append(s.Reasons, n.keeper.Reasons()...), n.proofs.reasons()...)
	for _, p := range n.runners.Status() {
		if p.Reason != "" {
			s.Reasons = append(s.Reasons, "runner "+p.Runner+": "+p.Reason)
		}
	}
	return s
}

// snapshot is the contract's view, and the index it shows.
func (n *Node) snapshot(ctx context.Context) (ledger.Snapshot, uint64) {
	look := n.look(ctx)
	var view ledger.Snapshot
	var index uint64
	n.raft.View(func(l *ledger.Ledger) { view, index = l.Snapshot(n.surroundings(l, look)), l.Index() })
	return view, index
}

// edgeStatus is the yard's part of Overhop's STATUS.
func (n *Node) edgeStatus() edge.Status {
	s := edge.Status{DataPath: n.cfg.Node.DataDir, Cluster: map[string]string{
		"node": n.cfg.Node.Name, "yard": n.cfg.Cluster.Name, "leader": n.raft.Status().Leader,
	}}
	s.DataSize = n.footprint.size(s.DataPath)
	_, err := os.Stat(s.DataPath)
	s.PathExists = err == nil
	n.raft.View(func(l *ledger.Ledger) {
		s.Bootstrapped = l.Authority().Owner != ""
		s.Cluster["authority"] = l.Authority().Owner
		for _, q := range l.Queues() {
			s.Queues++
			if q.Paused {
				s.PausedQueues++
			}
		}
	})
	return s
}

// footprintAge is how old a directory's size may be: to count it takes a look
// at every file, and whoever asks may ask often.
const footprintAge = 5 * time.Second

// footprint remembers how much a directory holds.
type footprint struct {
	mu    sync.Mutex
	until time.Time
	bytes int64
}

// size is what the files below dir take, in bytes, at most footprintAge ago.
func (f *footprint) size(dir string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Now().Before(f.until) {
		return f.bytes
	}
	f.bytes = 0
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() { // files come and go while we count
			if info, err := d.Info(); err == nil {
				f.bytes += info.Size()
			}
		}
		return nil
	})
	f.until = time.Now().Add(footprintAge)
	return f.bytes
}
