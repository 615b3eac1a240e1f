package consensus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"yardmaster/consensus/roster"
)

// Names of package roster that callers of this package need.
type (
	Member         = roster.Member
	Peer           = roster.Peer
	Seat           = roster.Seat
	Roll           = roster.Roll
	Newcomer       = roster.Newcomer
	GoneError      = roster.GoneError
	Identity       = roster.Identity
	IdentityConfig = roster.Config
	Build          = roster.Build
	Heard          = roster.Heard
)

// Identify settles who this node is; see [roster.Identify].
func Identify(ctx context.Context, cfg IdentityConfig, log *slog.Logger) (*Identity, error) {
	return roster.Identify(ctx, cfg, log)
}

// Config tunes the raft group. Zero fields get the defaults.
type Config struct {
	Dir string // the node's data directory; raft's files go to Dir/raft

	// HeartbeatTimeout is how long a follower waits for its leader before it
	// stands for election, ElectionTimeout how long a candidate waits for
	// votes; default 600 ms each. LeaderLease is how long a leader goes on
	// without hearing a quorum; default 300 ms, never above HeartbeatTimeout.
	HeartbeatTimeout, ElectionTimeout, LeaderLease time.Duration

	// CommitTimeout is how soon followers hear of a commit when nothing else
	// is sent, which bounds how stale their reads are. Default 5 ms; it costs
	// an idle leader about 5 % of a core.
	CommitTimeout time.Duration

	// MaxAppendEntries is the most log entries in one message; default 32.
	MaxAppendEntries int

	// MaxEntryBytes is the largest entry taken; default 1 MiB. Proposers
	// should stay well below it.
	MaxEntryBytes int

	// SnapshotBytes of applied entries cause a snapshot; default 64 MiB.
	// TrailingLogs entries stay in the log behind it for followers that lag a
	// little; default 1024.
	SnapshotBytes int64
	TrailingLogs  uint64

	// WriteDeadline is how long one write to the log may take; default 5 s.
	WriteDeadline time.Duration

	// Stuck is called when a write missed its deadline while another still
	// hangs, when a term or a vote cannot be written, and with a [*DamagedError]
	// when what this member has turns out not to be what it wrote. It must end
	// the process: the disk's lock cannot be given free from within. Default:
	// panic.
	Stuck func(error)

	wrap func(disk) disk // puts a test's faults before the disk
}

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.HeartbeatTimeout, 600*time.Millisecond)
	def(&c.ElectionTimeout, max(600*time.Millisecond, c.HeartbeatTimeout))
	def(&c.LeaderLease, c.HeartbeatTimeout/2)
	def(&c.CommitTimeout, 5*time.Millisecond)
	def(&c.WriteDeadline, 5*time.Second)
	if c.MaxAppendEntries == 0 {
		c.MaxAppendEntries = 32
	}
	if c.MaxEntryBytes == 0 {
		c.MaxEntryBytes = 1 << 20
	}
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = 64 << 20
	}
	if c.TrailingLogs == 0 {
		c.TrailingLogs = 1024
	}
	if c.Stuck == nil {
		c.Stuck = func(err error) { panic(err) }
	}
	if c.wrap == nil {
		c.wrap = func(d disk) disk { return d }
	}
	return c
}

// Validate checks the numbers, after the defaults.
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
