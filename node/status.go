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

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/edge"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// verbAuthorityStatus asks the authority for its status.
const verbAuthorityStatus = "authority_status"

// authorityStatusTimeout bounds that request.
const authorityStatusTimeout = 700 * time.Millisecond

// Status is the state of the node and, as far as it can see, of the cluster.
type Status struct {
	Node          string                  `json:"node"`
	Version       string                  `json:"version"`
	Mode          string                  `json:"mode"` // single or cluster
	Uptime        int64                   `json:"uptime_seconds"`
	HTTP          string                  `json:"http"` // host:port; "" without an HTTP listener
	Members       []MemberStatus          `json:"members"`
	Raft          RaftStatus              `json:"raft"`
	Authority     AuthorityStatus         `json:"authority"`
	Lanes         []LaneStatus            `json:"lanes"`
	Backlog       ledger.SnapshotBacklog  `json:"backlog"`
	HeldKeys      int                     `json:"held_keys"` // of guards, at most ledger.MaxHeldKeys
	OutboxBytes   int                     `json:"outbox_bytes"`
	StaleOutcomes uint64                  `json:"stale_outcomes"`
	Nodes         []scheduler.NodeView    `json:"nodes"` // as the authority sees them
	Pools         []runnerpool.PoolStatus `json:"pools"`
	Workers       WorkerStatus            `json:"workers"`
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
	// From the last handshake with the member at the Raft port.
	Version string `json:"version"`           // of its program; "" if there was none
	TLS     bool   `json:"tls"`               // the handshake was encrypted
	Refused string `json:"refused,omitempty"` // why the two nodes do not talk
}

// RaftStatus is the state of the Raft group as this node sees it.
type RaftStatus struct {
	State     string `json:"state"`
	Leader    string `json:"leader"`
	Term      uint64 `json:"term"`
	Applied   uint64 `json:"applied"`
	Last      uint64 `json:"last"`
	ContactMS int64  `json:"contact_ms"` // since the last contact with the leader; -1: never
}

// AuthorityStatus is the lease of the authority.
type AuthorityStatus struct {
	Owner       string    `json:"owner"`
	LeaseID     string    `json:"lease_id"`
	Epoch       uint64    `json:"epoch"`
	LeasedUntil time.Time `json:"leased_until"`
	Expired     bool      `json:"expired"`
}

// LaneStatus is the state of a lane.
type LaneStatus struct {
	Lane   int    `json:"lane"`
	Stream string `json:"stream"`
	Leader string `json:"leader"` // member; "" if no leader answers that is in contact with a majority
	First  uint64 `json:"first"`
	Last   uint64 `json:"last"`
	Cursor uint64 `json:"cursor"`
	Lag    uint64 `json:"lag"` // records that are not ingested

	full bool // the lane cannot take another job
}

// WorkerStatus counts this node's Overhop connections.
type WorkerStatus struct {
	Connections   int `json:"connections"`
	Registered    int `json:"registered"`
	Subscriptions int `json:"subscriptions"`
	Credits       int `json:"credits"` // jobs that the workers would take now
}

// ReadinessStatus is the readiness, with separate values for accepting and dispatching.
type ReadinessStatus struct {
	ledger.Readiness
	Accepting   bool `json:"accepting"`
	Dispatching bool `json:"dispatching"`
	// Warnings do not make the node unready, but need attention before they do.
	Warnings []string `json:"warnings,omitempty"`
}

// status collects the status of the node and the cluster.
func (n *Node) status(ctx context.Context) Status {
	raft := n.raft.Status()
	s := Status{
		Node: n.cfg.Node.Name, Version: n.version, Mode: "single", Uptime: int64(time.Since(n.started).Seconds()),
		Raft: RaftStatus{
			State: raft.State, Leader: raft.Leader, Term: raft.Term, Applied: raft.Applied, Last: raft.Last,
			ContactMS: raft.Contact.Milliseconds(),
		},
		Pools: n.runners.Status(), HTTP: n.httpAddr, Drain: n.drainStatus(),
	}
	if raft.Contact < 0 {
		s.Raft.ContactMS = -1
	}
	if n.cfg.Clustered() {
		s.Mode = "cluster"
	}
	counts := n.edge.Counts()
	s.Workers = WorkerStatus{counts.Connections, counts.Registered, counts.Subscriptions, counts.Credits}
	authority := n.authorityStatus(ctx)
	s.Nodes = authority.Nodes
	s.Lanes = n.laneStatus(ctx)
	s.Readiness = n.readiness(ctx, authority, s.Lanes)
	n.raft.View(func(l *ledger.Ledger) {
		a, view := l.Authority(), l.Snapshot(ledger.SnapshotContext{Now: time.Now()}) // without a quorum the ledger's own time does not advance
		s.Authority = AuthorityStatus{a.Owner, a.LeaseID, a.Epoch, a.Until, view.Authority.Stale}
		s.HeldKeys, s.OutboxBytes, s.StaleOutcomes = l.HeldKeys(), l.OutboxBytes(), l.Stale()
		s.Backlog = view.Backlog
	})
	up := map[string]string{}
	for _, node := range authority.Nodes {
		up[node.Name] = node.State()
	}
	for _, m := range raft.Members {
		state, known := up[m.Name]
		switch {
		case authority.Error != "":
			state = "unknown"
		case !known:
			state = "down"
		}
		s.Members = append(s.Members, MemberStatus{Name: m.Name, Address: m.Addr, Voter: m.Voter, Leader: m.Name == raft.Leader, State: state})
	}
	n.addPeerInfo(s.Members)
	return s
}

// readiness returns the readiness of the snapshot, with accepting and dispatching.
func (n *Node) readiness(ctx context.Context, authority scheduler.AuthorityStatus, lanes []LaneStatus) ReadinessStatus {
	healthErr := n.cluster.Health(ctx)
	if !n.cfg.Clustered() && anyLaneLed(lanes) {
		healthErr = nil // on a single server a stream that is being created looks like one that was lost
	}
	r := ReadinessStatus{Dispatching: authority.Error == "" && authority.Dispatching, Warnings: append(n.certificateWarnings(time.Now()), n.drainWarnings()...)}
	accepting, reasons := acceptingJobs(healthErr, lanes)
	r.Accepting = accepting && n.monitor.ClosedReason() == ""
	n.raft.View(func(l *ledger.Ledger) {
		s := n.snapshotContext(l, authority)
		s.Reasons = append(s.Reasons, reasons...)
		r.Readiness = l.Snapshot(s).Readiness
	})
	return r
}

// acceptingJobs reports whether this node accepts jobs, and if not, why. There is another
// reason until the lanes exist.
func acceptingJobs(healthErr error, lanes []LaneStatus) (accepting bool, reasons []string) {
	if healthErr != nil {
		reasons = append(reasons, fmt.Sprintf("%v: this node accepts no jobs until it is; others may", healthErr))
	}
	if len(lanes) > 0 && !anyLaneLed(lanes) {
		reasons = append(reasons, "no lane has a leader that this node hears: it accepts no jobs until one has")
	}
	return healthErr == nil && slices.ContainsFunc(lanes, LaneStatus.accepts), reasons
}

// accepts reports whether a job published now would be stored. The authority reports full
// lanes.
func (l LaneStatus) accepts() bool { return l.Leader != "" && !l.full }

func anyLaneLed(lanes []LaneStatus) bool {
	for _, l := range lanes {
		if l.Leader != "" {
			return true
		}
	}
	return false
}

// laneStatusTimeout bounds the requests to the lanes' leaders.
const laneStatusTimeout = 400 * time.Millisecond

// laneStatus asks the leaders of all lanes at the same time.
func (n *Node) laneStatus(ctx context.Context) []LaneStatus {
	ctx, cancel := context.WithTimeout(ctx, laneStatusTimeout)
	defer cancel()
	var cursors []ledger.LaneCursor
	n.raft.View(func(l *ledger.Ledger) { cursors = l.Lanes() })
	status := make([]LaneStatus, len(cursors))
	var queries sync.WaitGroup
	for i, c := range cursors {
		s := &status[i]
		*s = LaneStatus{Lane: i, Stream: cluster.LaneStream(uint8(i)), Cursor: c.Cursor}
		queries.Go(func() {
			info, err := n.cluster.LaneInfo(ctx, uint8(s.Lane))
			if err != nil || !info.Quorum {
				return // no leader answers, or it is cut off from a majority
			}
			s.Leader, s.First, s.Last = info.Leader, info.First, info.Last
			s.full = scheduler.LaneFull(info.Bytes, uint64(max(info.MaxBytes, 0)))
			if s.Last > s.Cursor {
				s.Lag = s.Last - s.Cursor
			}
		})
	}
	queries.Wait()
	return status
}

// authorityStatus asks the authority for its status. Without an answer Error is set.
func (n *Node) authorityStatus(ctx context.Context) scheduler.AuthorityStatus {
	if text := n.noQuorum(); text != "" {
		return scheduler.AuthorityStatus{Error: text}
	}
	ctx, cancel := context.WithTimeout(ctx, authorityStatusTimeout)
	defer cancel()
	owner, _, known := n.authority.current()
	if text := noAuthorityText(known); text != "" {
		return scheduler.AuthorityStatus{Error: text}
	}
	if owner == n.cfg.Node.Name {
		return n.localAuthorityStatus(ctx)
	}
	var l scheduler.AuthorityStatus
	raw, err := n.fleet.Request(ctx, owner, verbAuthorityStatus, nil)
	if err == nil {
		err = json.Unmarshal(raw, &l)
	}
	if err != nil {
		l.Error = "the authority, " + owner + ", does not answer: " + errorText(err)
	}
	return l
}

// noQuorum returns why there is no quorum, or "" if there is one as far as this node
// knows.
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

func noAuthorityText(known bool) string {
	if known {
		return ""
	}
	return "no authority is known to this node: the Raft leader takes it within seconds"
}

// localAuthorityStatus returns the status of this node, which is the authority according
// to the ledger.
func (n *Node) localAuthorityStatus(ctx context.Context) scheduler.AuthorityStatus {
	l, err := n.scheduler.Status(ctx)
	if err != nil {
		l.Error = "this node holds the lease and does not decide yet, or no more: that passes within seconds"
	}
	l.Reasons = append(l.Reasons, n.skew()...)
	return l
}

func (n *Node) serveAuthorityStatus(ctx context.Context, _ []byte) ([]byte, error) {
	l, err := n.scheduler.Status(ctx)
	if err != nil {
		return nil, err
	}
	l.Reasons = append(l.Reasons, n.skew()...)
	return json.Marshal(l)
}

// skew returns where Raft voters, stream replicas and the membership differ.
func (n *Node) skew() []string {
	if n.reconciler == nil {
		return nil
	}
	return n.reconciler.Reasons()
}

// streamsNotMade reports that the cluster's streams were never created. An empty ledger,
// of a node that has just started, does not count.
func streamsNotMade(l *ledger.Ledger) bool { return l.Index() > 0 && !l.StreamsCreated() }

// snapshotContext returns what the snapshot of l needs besides the ledger.
func (n *Node) snapshotContext(l *ledger.Ledger, authority scheduler.AuthorityStatus) ledger.SnapshotContext {
	s := ledger.SnapshotContext{
		Now: time.Now(), PendingEvents: authority.Pending, OldestPending: authority.OldestPending, Deferred: authority.Deferred, Reasons: authority.Reasons,
	}
	if authority.Error != "" {
		s.Reasons = append(s.Reasons, authority.Error)
	}
	if streamsNotMade(l) {
		s.Reasons = append(s.Reasons, "the yard's streams are not made yet: that takes all members, once")
	}
	s.Reasons = append(append(s.Reasons, n.monitor.Reasons()...), n.consistency.reasons()...)
	for _, p := range n.runners.Status() {
		if p.Reason != "" {
			s.Reasons = append(s.Reasons, "runner "+p.Runner+": "+p.Reason)
		}
	}
	return s
}

// snapshot returns the runtime contract's view, and the index that it shows.
func (n *Node) snapshot(ctx context.Context) (ledger.Snapshot, uint64) {
	authority := n.authorityStatus(ctx)
	var view ledger.Snapshot
	var index uint64
	n.raft.View(func(l *ledger.Ledger) { view, index = l.Snapshot(n.snapshotContext(l, authority)), l.Index() })
	return view, index
}

// edgeStatus returns the cluster's part of the STATUS frame.
func (n *Node) edgeStatus() edge.Status {
	s := edge.Status{DataPath: n.cfg.Node.DataDir, Cluster: map[string]string{
		"node": n.cfg.Node.Name, "yard": n.cfg.Cluster.Name, "leader": n.raft.Status().Leader,
	}}
	s.DataSize = n.dataSize.size(s.DataPath)
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

// dirSizeMaxAge is how long the size of a directory is cached: determining it reads the
// metadata of every file.
const dirSizeMaxAge = 5 * time.Second

// dirSizeCache caches the size of a directory.
type dirSizeCache struct {
	mu      sync.Mutex
	expires time.Time
	bytes   int64
}

// size returns the total size of the files below dir in bytes, up to dirSizeMaxAge old.
func (f *dirSizeCache) size(dir string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Now().Before(f.expires) {
		return f.bytes
	}
	f.bytes = 0
	_ = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() { // ignore errors: files come and go
			if info, err := d.Info(); err == nil {
				f.bytes += info.Size()
			}
		}
		return nil
	})
	f.expires = time.Now().Add(dirSizeMaxAge)
	return f.bytes
}
