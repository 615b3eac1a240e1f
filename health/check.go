package health

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// ChecksConfig is what the checks of a node depend on.
type ChecksConfig struct {
	Node      string
	DataDir   string
	Clustered bool
	Members   func() []string // returns the names of all members, including this node

	Raft      *consensus.Node
	Authority func() string // returns the authority according to the ledger, "" if there is none
	NATS      *cluster.Server
	// AvailableLanes returns the number of lanes that answer.
	AvailableLanes func() int
	Leaving        func() bool      // reports whether this node is stopping or drained
	Drained        func() time.Time // returns since when it has been drained; zero: it is not
}

// Checks determines the status of this node, except for its disk.
type Checks struct {
	cfg       ChecksConfig
	partition partitionWatch
}

// NewChecks returns the checks of a node, to be run by its monitor.
func NewChecks(cfg ChecksConfig) *Checks { return &Checks{cfg: cfg} }

// Status checks this node, except its disk, and returns its status with a condition for
// each problem.
func (c *Checks) Status(now time.Time) NodeStatus {
	raft := c.cfg.Raft.Status()
	s := NodeStatus{
		Reaches: c.cfg.NATS.ReachableMembers(), Leader: raft.Leader, Contact: raft.Contact, Last: raft.Last, Leaving: c.cfg.Leaving(),
		Drained: c.cfg.Drained(), Behind: c.cfg.NATS.Behind(),
	}
	add := func(kind Kind, format string, args ...any) {
		s.Conditions = append(s.Conditions, Condition{Kind: kind, Text: fmt.Sprintf(format, args...)})
	}
	if err := c.cfg.Raft.WriteError(); err != nil {
		add(DiskFailed, "the log cannot be written: %v; free space, or replace the disk", err)
	}
	if text := c.cfg.NATS.WriteFailure(); text != "" {
		add(JetStream, "%s", text)
	} else if err := c.cfg.NATS.Health(); err != nil && c.cfg.Clustered {
		add(JetStream, "%v", err)
	}
	members := c.cfg.Members()
	reachesMajority := len(s.Reaches) > len(members)/2
	if !reachesMajority && raft.Leader != "" {
		missing := slices.DeleteFunc(slices.Clone(members), func(m string) bool { return slices.Contains(s.Reaches, m) })
		add(Routes, "it follows a Raft leader, but has no NATS route to %s: mend the network between their route addresses", strings.Join(missing, ", "))
	}
	streamsCreated := false
	c.cfg.Raft.View(func(l *ledger.Ledger) { streamsCreated = l.StreamsCreated() })
	if streamsCreated && c.cfg.Clustered && c.cfg.AvailableLanes() == 0 {
		add(NoLane, "no lane answers it")
	}
	if stalled := c.cfg.NATS.Stalls.StalledReplicas(); len(stalled) > 0 {
		add(StalledReplica, "its copy of %s lags behind the leader's and has not come nearer for 20 s: stop no other member until it has; if it stays, run 'yardmaster cluster members', restart this node, and replace it if that does not help", strings.Join(stalled, ", "))
	}
	gaps := c.cfg.NATS.Stalls.Gaps()
	for _, stream := range slices.Sorted(maps.Keys(gaps)) {
		add(ReplicaMismatch, "%s", c.gapText(stream, gaps[stream]))
	}
	owner := c.cfg.Authority()
	if c.partition.persists(now, owner, s.Reaches, raft.Contact) && reachesMajority {
		add(PartialPartition, "partial partition: it has no NATS route to the authority, %s, which others have: mend the network between these two", owner)
	}
	return s
}

// gapText returns the text of the condition that this node's replica of a stream lacks
// a number of messages.
func (c *Checks) gapText(stream string, missing uint64) string {
	step := "restore the yard from a backup"
	if c.cfg.Clustered {
		step = fmt.Sprintf("stop this node, keep %s aside, start it with an empty one, and at another member run 'yardmaster cluster replace %s'", c.cfg.DataDir, c.cfg.Node)
	}
	return fmt.Sprintf("its replica of %s lacks messages that its disk has lost, %d of them: %s", stream, missing, step)
}

// partitionGrace is how long the authority may be unreachable over NATS before the
// condition is reported.
const partitionGrace = 10 * time.Second

// partitionWatch tracks since when this node follows an authority that it does not
// reach over NATS.
type partitionWatch struct {
	from  string // the authority that is not reached; "": none
	since time.Time
}

// persists reports whether, for partitionGrace, owner has been the authority, has been
// absent from reaches, the members that this node reaches over NATS, and the node has had
// contact with the Raft leader. contact is the time since the last contact, negative if
// there was none.
func (p *partitionWatch) persists(now time.Time, owner string, reaches []string, contact time.Duration) bool {
	if owner == "" || contact < 0 || contact > partitionGrace || slices.Contains(reaches, owner) {
		p.from = ""
		return false
	}
	if p.from != owner {
		p.from, p.since = owner, now
	}
	return now.Sub(p.since) >= partitionGrace
}
