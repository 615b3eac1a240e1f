package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/health"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// The checks of this node that the health monitor runs.

// newMonitor returns the health monitor of this node.
func (n *Node) newMonitor() *health.Monitor {
	partition := &partitionWatch{}
	return health.New(health.Config{
		Node: n.cfg.Node.Name, Members: n.memberNames, Disk: n.cfg.disk(),
		Check: func(ctx context.Context) health.NodeStatus { return n.healthStatus(ctx, partition, time.Now()) },
		PeerStatus: func(member string) (w health.NodeStatus, err error) {
			raw, err := n.raft.PeerStatus(member)
			if err == nil {
				err = json.Unmarshal(raw, &w)
			}
			return w, err
		},
		PublishStatus: func(w health.NodeStatus) {
			if raw, err := json.Marshal(w); err == nil { // plain fields: it does not fail
				n.raft.SetNodeStatus(raw)
			}
		},
		HoldsAuthority: func() bool {
			owner, _, _ := n.authority.current()
			return owner == n.cfg.Node.Name && n.raft.Status().Leader == owner
		},
		TransferAuthority: n.raft.Transfer,
		SetClosed:         n.cluster.SetIntakeClosed,
	}, n.log)
}

// makeBallast creates the ballast file. A node without one still runs.
func (n *Node) makeBallast() {
	disk := n.cfg.disk()
	bytes, err := disk.EnsureBallast(n.cfg.Disk.BallastBytes)
	switch {
	case err != nil:
		n.log.Warn("ballast file not created", "err", err)
	case bytes == 0 && n.cfg.Disk.BallastBytes != health.NoBallast:
		n.log.Info("ballast file not created: too little free space, or a file system in memory")
	}
}

// memberNames returns the names of the Raft voters, or the configured members if the
// group has no voters yet.
func (n *Node) memberNames() (names []string) {
	for _, m := range n.raft.Status().Members {
		if m.Voter {
			names = append(names, m.Name)
		}
	}
	if len(names) == 0 {
		return n.cfg.members()
	}
	return names
}

// shouldNotLead reports whether a member should lead no lane, because its disk is
// low, or because it is stopping or drained.
func (n *Node) shouldNotLead(member string) bool {
	leaving := func(w health.NodeStatus) bool { return w.Node == member && w.Leaving }
	return slices.Contains(n.monitor.MembersAtLevel(health.LevelLow), member) || slices.ContainsFunc(n.monitor.PeerStatuses(), leaving)
}

// healthStatus checks this node and returns what it found.
func (n *Node) healthStatus(ctx context.Context, partition *partitionWatch, now time.Time) health.NodeStatus {
	raft := n.raft.Status()
	w := health.NodeStatus{
		Reaches: n.cluster.ReachableMembers(), Leader: raft.Leader, Contact: raft.Contact, Last: raft.Last, Leaving: n.proposer.leaving.Load(),
		Drained: n.drain.Since(),
	}
	add := func(kind health.Kind, format string, args ...any) {
		w.Conditions = append(w.Conditions, health.Condition{Kind: kind, Text: fmt.Sprintf(format, args...)})
	}
	if err := n.raft.WriteError(); err != nil {
		add(health.DiskFailed, "the log cannot be written: %v; free space, or mend the disk", err)
	}
	if text := n.cluster.WriteFailure(); text != "" {
		add(health.JetStream, "%s", text)
	} else if err := n.cluster.Health(ctx); err != nil && n.cfg.Clustered() {
		add(health.JetStream, "%v", err)
	}
	members := n.memberNames()
	if len(w.Reaches) <= len(members)/2 && raft.Leader != "" {
		missing := slices.DeleteFunc(slices.Clone(members), func(m string) bool { return slices.Contains(w.Reaches, m) })
		add(health.Routes, "it follows a Raft leader, but has no NATS route to %s: mend the network between their route addresses", strings.Join(missing, ", "))
	}
	streamsMade := false
	n.raft.View(func(l *ledger.Ledger) { streamsMade = l.StreamsCreated() })
	if streamsMade && n.cfg.Clustered() && n.cluster.AvailableLanes() == 0 {
		add(health.NoLane, "no lane answers it")
	}
	if behind := n.cluster.StalledReplicas(); len(behind) > 0 {
		add(health.StalledReplica, "its copy of %s lags behind the leader's and has not come nearer for 20 s: stop no other member until it has; if it stays, run 'yardmaster cluster members', restart this node, and replace it if that does not help", strings.Join(behind, ", "))
	}
	gaps := n.cluster.Gaps()
	for _, stream := range slices.Sorted(maps.Keys(gaps)) {
		add(health.ReplicaMismatch, "%s", n.gapText(stream, gaps[stream]))
	}
	owner, _, _ := n.authority.current()
	if partition.persists(now, owner, w.Reaches, raft.Contact) && len(w.Reaches) > len(members)/2 {
		add(health.PartialPartition, "partial partition: it has no NATS route to the authority, %s, which others have: mend the network between these two", owner)
	}
	return w
}

// gapText returns what to report of a gap in this node's replica of a stream.
func (n *Node) gapText(stream string, missing uint64) string {
	step := "restore the yard from a backup"
	if n.cfg.Clustered() {
		step = fmt.Sprintf("stop this node, keep %s aside, start it with an empty one, and at another member run 'yardmaster cluster replace %s'", n.cfg.Node.DataDir, n.cfg.Node.Name)
	}
	return fmt.Sprintf("its replica of %s lacks messages that its disk has lost, %d of them: %s", stream, missing, step)
}

// partitionGrace is how long the authority may be unreachable over NATS before the
// condition is reported.
const partitionGrace = 10 * time.Second

// partitionWatch tracks since when this node follows an authority that it does not
// reach over NATS.
type partitionWatch struct {
	from  string
	since time.Time
}

func (c *partitionWatch) persists(now time.Time, owner string, reaches []string, contact time.Duration) bool {
	if owner == "" || contact < 0 || contact > partitionGrace || slices.Contains(reaches, owner) {
		c.from = ""
		return false
	}
	if c.from != owner {
		c.from, c.since = owner, now
	}
	return now.Sub(c.since) >= partitionGrace
}
