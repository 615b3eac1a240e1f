package ledger

import (
	"fmt"
	"time"
)

// Snapshot is the runtime contract's view of the state.
type Snapshot struct {
	SchemaVersion int               `json:"schema_version"`
	Authority     SnapshotAuthority `json:"authority"`
	Backlog       SnapshotBacklog   `json:"backlog"`
	Replay        SnapshotReplay    `json:"replay"`
	Readiness     Readiness         `json:"readiness"`
}

// SnapshotAuthority is the lease; fields that are not set are nil.
type SnapshotAuthority struct {
	Owner       *string `json:"owner"`
	LeaseID     *string `json:"lease_id"`
	LeasedUntil *string `json:"leased_until"`
	Stale       bool    `json:"stale"`
	StaleReason *string `json:"stale_reason"`
}

// SnapshotBacklog is the number of dispatches in each state.
type SnapshotBacklog struct {
	Pending   uint64 `json:"pending"`
	Notified  uint64 `json:"notified"`
	Delivered uint64 `json:"delivered"`
	Failed    uint64 `json:"failed"`
}

// SnapshotReplay is how far accepted records have been ingested or, during a
// replay, read again.
type SnapshotReplay struct {
	Cursor                     *string `json:"cursor"`
	PendingEvents              uint64  `json:"pending_events"`
	LastReplayedEventID        *string `json:"last_replayed_event_id"`
	DeferredLeaderNotification bool    `json:"deferred_leader_notification"`
}

// Readiness reports whether the runtime is ready, and the reasons if it is not.
type Readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

// SchemaVersion is the version of the contract's snapshot format.
const SchemaVersion = 1

// SnapshotContext holds what the ledger cannot know itself: the state of the
// lanes, and other reasons why a node is not ready.
type SnapshotContext struct {
	Now           time.Time
	PendingEvents uint64        // accepted, not ingested
	OldestPending time.Duration // age of the oldest of them
	Deferred      bool          // a new authority has not yet caught up with the lanes
	Reasons       []string      // further reasons, in order
}

// maxPendingAge is how old a record that is not ingested may be before it makes
// the node unready.
const maxPendingAge = 5 * time.Second

// Snapshot returns the contract's view of the state.
func (l *Ledger) Snapshot(s SnapshotContext) Snapshot {
	view := Snapshot{SchemaVersion: SchemaVersion, Backlog: l.counts}
	a := l.authority // a copy: the view outlives the lock under which the ledger is read
	if a.owner != "" {
		view.Authority.Owner, view.Authority.LeaseID, view.Authority.LeasedUntil = &a.owner, &a.leaseID, &a.leasedUntil
		if a.expired(s.Now.UnixNano()) {
			reason := "lease expired"
			view.Authority.Stale, view.Authority.StaleReason = true, &reason
		}
	}
	view.Replay = SnapshotReplay{
		Cursor: l.replayCursor(), PendingEvents: s.PendingEvents + l.replay.remaining(),
		LastReplayedEventID: l.lastReplayed(), DeferredLeaderNotification: s.Deferred,
	}
	view.Readiness.Reasons = append(l.reasons(&view, s), s.Reasons...)
	view.Readiness.Ready = len(view.Readiness.Reasons) == 0
	return view
}

// reasons returns the ledger's own reasons not to be ready: they concern the
// authority in view, unread records, a restore, and damage
// that a replay found. It returns an empty list, never nil, without a reason.
func (l *Ledger) reasons(view *Snapshot, s SnapshotContext) []string {
	reasons := []string{}
	switch {
	case view.Authority.Owner == nil:
		reasons = append(reasons, "authority lease not acquired")
	case view.Authority.Stale:
		reasons = append(reasons, "authority lease is stale: "+*view.Authority.StaleReason)
	}
	if s.PendingEvents > 0 && (s.Deferred || s.OldestPending > maxPendingAge) {
		reasons = append(reasons, fmt.Sprintf("replay has %d pending events", s.PendingEvents))
	}
	if id, source := l.Restoring(); id != "" {
		reasons = append(reasons, fmt.Sprintf("a restore of %s was begun and has not ended: nothing is accepted; if none is running, take it again: yardmaster restore <file>", source))
	}
	return append(reasons, l.replay.reasons()...)
}
