package consensus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"
	"github.com/yardmaster-dev/yardmaster/consensus/peers"
)

// Names of package peers that callers of this package need.
type (
	Member         = peers.Member
	Peer           = peers.Peer
	MemberID       = peers.MemberID
	Membership     = peers.Membership
	WaitingNode    = peers.WaitingNode
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

// Config configures the Raft group. Zero fields get the defaults.
type Config struct {
	Dir string // the node's data directory; Raft's files are in Dir/raft

	// HeartbeatTimeout is how long a follower waits for its leader before it
	// becomes a candidate, ElectionTimeout how long a candidate waits for
	// votes; default 600 ms each. LeaderLease is how long a leader continues
	// without contact to a quorum; default 300 ms, at most HeartbeatTimeout.
	HeartbeatTimeout, ElectionTimeout, LeaderLease time.Duration

	// CommitTimeout is how soon followers learn of a commit when nothing else
	// is sent, which limits how stale their reads are. Default 5 ms; it costs
	// an idle leader about 5 % of a core.
	CommitTimeout time.Duration

	// MaxAppendEntries is the highest number of log entries in one message;
	// default 32.
	MaxAppendEntries int

	// MaxEntryBytes is the size of the largest entry that is accepted; default
	// 1 MiB. Proposers should stay well below it.
	MaxEntryBytes int

	// SnapshotBytes is the size of applied entries after which a snapshot is
	// taken; default 64 MiB. TrailingLogs is the number of entries that stay in
	// the log before a snapshot, for followers that lag slightly; default 1024.
	SnapshotBytes int64
	TrailingLogs  uint64

	// WriteDeadline is how long one write to the log may take; default 5 s.
	WriteDeadline time.Duration

	// OnFatal is called when a write missed its deadline while another one
	// still hangs, when a term or a vote cannot be written, and with a
	// [*DamagedError] when this member's data is not what it wrote. It must end
	// the process, because only that releases the lock on the data directory's
	// files. Default: panic.
	OnFatal func(error)

	wrapStore func(rawStore) rawStore // wraps the disk's store with the faults of a test
}

// withDefaults returns c with the default in place of each zero field.
func (c Config) withDefaults() Config {
	c.HeartbeatTimeout = cmp.Or(c.HeartbeatTimeout, 600*time.Millisecond)
	c.ElectionTimeout = cmp.Or(c.ElectionTimeout, max(600*time.Millisecond, c.HeartbeatTimeout))
	c.LeaderLease = cmp.Or(c.LeaderLease, c.HeartbeatTimeout/2)
	c.CommitTimeout = cmp.Or(c.CommitTimeout, 5*time.Millisecond)
	c.WriteDeadline = cmp.Or(c.WriteDeadline, 5*time.Second)
	c.MaxAppendEntries = cmp.Or(c.MaxAppendEntries, 32)
	c.MaxEntryBytes = cmp.Or(c.MaxEntryBytes, 1<<20)
	c.SnapshotBytes = cmp.Or(c.SnapshotBytes, 64<<20)
	c.TrailingLogs = cmp.Or(c.TrailingLogs, 1024)
	if c.OnFatal == nil {
		c.OnFatal = func(err error) { panic(err) }
	}
	if c.wrapStore == nil {
		c.wrapStore = func(d rawStore) rawStore { return d }
	}
	return c
}

// Validate returns an error if a value is out of range. It checks the defaults of zero
// fields, too, because some limits depend on other fields.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.Dir == "":
		return errors.New("data directory is not given")
	case c.HeartbeatTimeout < 50*time.Millisecond:
		return fmt.Errorf("heartbeat timeout %v: must be at least 50ms", c.HeartbeatTimeout)
	case c.ElectionTimeout < c.HeartbeatTimeout:
		return fmt.Errorf("election timeout %v: must not be below the heartbeat timeout (%v)", c.ElectionTimeout, c.HeartbeatTimeout)
	case c.LeaderLease < 25*time.Millisecond || c.LeaderLease > c.HeartbeatTimeout:
		return fmt.Errorf("leader lease %v: must be 25ms to the heartbeat timeout (%v)", c.LeaderLease, c.HeartbeatTimeout)
	case c.CommitTimeout < time.Millisecond:
		return fmt.Errorf("commit timeout %v: must be at least 1ms", c.CommitTimeout)
	case c.MaxAppendEntries < 1 || c.MaxAppendEntries > 1024:
		return fmt.Errorf("max append entries %d: must be 1 to 1024", c.MaxAppendEntries)
	case c.MaxEntryBytes < 4<<10 || c.SnapshotBytes < 1<<10 || c.WriteDeadline < 0:
		return errors.New("entry size, snapshot size or write deadline is out of range: at least 4 KiB, 1 KiB and 0")
	}
	return nil
}

// raft returns the configuration of Raft.
func (c Config) raft(id *Identity, log *raftLog) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(id.ServerID())
	conf.HeartbeatTimeout, conf.ElectionTimeout = c.HeartbeatTimeout, c.ElectionTimeout
	conf.LeaderLeaseTimeout, conf.CommitTimeout = c.LeaderLease, c.CommitTimeout
	conf.MaxAppendEntries, conf.BatchApplyCh = c.MaxAppendEntries, true
	conf.TrailingLogs = c.TrailingLogs
	// Snapshots are taken by bytes, see snapshotLoop; this limits a log of many
	// tiny entries.
	conf.SnapshotThreshold, conf.SnapshotInterval = 64<<10, time.Minute
	conf.ShutdownOnRemove = false
	conf.NoLegacyTelemetry = true
	conf.Logger = log
	return conf
}
