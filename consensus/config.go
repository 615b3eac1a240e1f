package consensus

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/hashicorp/raft"

	"github.com/yardmaster-dev/yardmaster/consensus/peers"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Names of package peers that callers of this package need.
type (
	Member         = peers.Member
	Peer           = peers.Peer
	MemberID       = peers.MemberID
	Membership     = peers.Membership
	WaitingNode    = peers.WaitingNode
	RefusedError   = peers.RefusedError
	RemovedError   = peers.RemovedError
	Identity       = peers.Identity
	IdentityConfig = peers.Config
	Build          = peers.Build
	Contact        = peers.Contact
)

// Identify determines this node's identity and cluster; see [peers.Identify].
func Identify(ctx context.Context, cfg IdentityConfig, log *slog.Logger) (*Identity, error) {
	return peers.Identify(ctx, cfg, log)
}

// The timing of the Raft group and the sizes of its messages.
const (
	heartbeatTimeout = 600 * time.Millisecond // how long a follower waits for its leader before it becomes a candidate
	electionTimeout  = heartbeatTimeout       // how long a candidate waits for votes
	commitTimeout    = 5 * time.Millisecond   // how soon followers learn of a commit; costs an idle leader about 5 % of a core
	writeDeadline    = 5 * time.Second        // for one write to the log
	maxAppendEntries = 32                     // log entries in one message
	maxEntryBytes    = 1 << 20                // of the largest entry; proposers should stay well below it
	trailingBytes    = 128 << 20              // of the entries that stay in the log before a snapshot: more than half a minute at full load, for followers that lag
)

// Config configures the Raft group.
type Config struct {
	Dir string // the node's data directory; Raft's files are in Dir/raft

	// SnapshotBytes is the size of applied entries after which a snapshot is
	// taken if the last one is not larger than half of it: see snapshotTrigger.
	// 0 means 64 MiB.
	SnapshotBytes int64

	Projection Projection // nil: none

	// OnFatal is called when a write missed its deadline while another one
	// still hangs, when a term or a vote cannot be written, and with a
	// [*DamagedError] when this member's data is not what it wrote, or a
	// [*ReleaseError] when another release wrote it. It must end the process,
	// because only that releases the lock on the data directory's files.
	// Default: panic.
	OnFatal func(error)

	// Changes gets the changes of this member's ledger; nil: they are not recorded. Saved is called
	// before a snapshot is written, with the index of its last entry: entries before it are not
	// applied again when the node starts. nil: nothing has to be saved.
	Changes *ledger.ChangeList
	Saved   func(index uint64)

	// Only tests set the following fields. 0 means the constant of the same name or
	// wal.SegmentSize, and nil the store on the disk.
	heartbeatTimeout, writeDeadline time.Duration
	trailingBytes, segmentBytes     int64
	wrapStore                       func(rawStore) rawStore
}

// withDefaults returns c with the default in place of each zero field.
func (c Config) withDefaults() Config {
	c.SnapshotBytes = cmp.Or(c.SnapshotBytes, 64<<20)
	c.heartbeatTimeout = cmp.Or(c.heartbeatTimeout, heartbeatTimeout)
	c.writeDeadline = cmp.Or(c.writeDeadline, writeDeadline)
	c.trailingBytes = cmp.Or(c.trailingBytes, trailingBytes)
	if c.OnFatal == nil {
		c.OnFatal = func(err error) { panic(err) }
	}
	if c.wrapStore == nil {
		c.wrapStore = func(store rawStore) rawStore { return store }
	}
	return c
}

// raft returns the configuration of the Raft library for the member id. A leader
// without contact to a quorum steps down after the time after which its followers elect
// another one: any earlier would depose leaders of a machine that is only busy, and what
// a leader decides in the meantime is fenced by its term and its epoch.
func (c Config) raft(id *Identity, log *raftLog) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(id.ServerID())
	conf.HeartbeatTimeout, conf.LeaderLeaseTimeout = c.heartbeatTimeout, c.heartbeatTimeout
	conf.ElectionTimeout, conf.CommitTimeout = electionTimeout, commitTimeout
	conf.MaxAppendEntries, conf.BatchApplyCh = maxAppendEntries, true
	// Snapshots are taken by bytes, see snapshotLoop, which also sets TrailingLogs.
	conf.SnapshotThreshold = math.MaxUint64
	conf.ShutdownOnRemove = false
	conf.NoLegacyTelemetry = true
	conf.Logger = log
	return conf
}
