package ledger

import (
	"fmt"
	"time"
)

// Snapshot is the contract's view of the runtime.
type Snapshot struct {
	SchemaVersion int               `json:"schema_version"`
	Authority     SnapshotAuthority `json:"authority"`
	Backlog       SnapshotBacklog   `json:"backlog"`
	Replay        SnapshotReplay    `json:"replay"`
	Readiness     Readiness         `json:"readiness"`
}

// SnapshotAuthority is the lease; nil fields are unset.
type SnapshotAuthority struct {
	Owner       *string `json:"owner"`
	LeaseID     *string `json:"lease_id"`
	LeasedUntil *string `json:"leased_until"`
	Stale       bool    `json:"stale"`
	StaleReason *string `json:"stale_reason"`
}

// SnapshotBacklog counts the dispatches.
type SnapshotBacklog struct {
	Pending   uint64 `json:"pending"`
	Notified  uint64 `json:"notified"`
	Delivered uint64 `json:"delivered"`
	Failed    uint64 `json:"failed"`
}

// SnapshotReplay tells how far accepted records have been folded or, while a
// replay is under way, read again.
type SnapshotReplay struct {
	Cursor                     *string `json:"cursor"`
	PendingEvents              uint64  `json:"pending_events"`
	LastReplayedEventID        *string `json:"last_replayed_event_id"`
	DeferredLeaderNotification bool    `json:"deferred_leader_notification"`
}

// Readiness says whether the runtime is ready, and if not, why.
type Readiness struct {
	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"`
}

// SchemaVersion is the contract's.
const SchemaVersion = 1

// Surroundings is what the ledger cannot know of itself: how the lanes that it
// is folded from stand, and what else keeps a node from being ready.
type Surroundings struct {
	Now           time.Time
	PendingEvents uint64        // accepted and not folded
	OldestPending time.Duration // age of the oldest of them
	Deferred      bool          // a new authority has not caught up with the lanes
	Reasons       []string      // further blockers, in order
}

// pendingTooLong is how old an accepted record may be before it is a reason
// not to be ready.
const pendingTooLong = 5 * time.Second

// Snapshot gives the contract's view.
func (l *Ledger) Snapshot(s Surroundings) Snapshot {
	view := Snapshot{SchemaVersion: SchemaVersion, Backlog: SnapshotBacklog(l.counts)}
	a := l.authority // its own copy: the view outlives the lock the ledger is read under
	if a.owner != "" {
		view.Authority.Owner, view.Authority.LeaseID, view.Authority.LeasedUntil = &a.owner, &a.leaseID, &a.leasedUntil
		if a.expired(s.Now.UnixNano()) {
			reason := "lease expired"
			view.Authority.Stale, view.Authority.StaleReason = true, &reason
		}
	}
	view.Replay = SnapshotReplay{
		Cursor: l.replayCursor(), PendingEvents: s.PendingEvents + l.replay.left(),
		LastReplayedEventID: l.lastReplayed(), DeferredLeaderNotification: s.Deferred,
	}
	view.Readiness.Reasons = append(l.reasons(&view, s), s.Reasons...)
	view.Readiness.Ready = len(view.Readiness.Reasons) == 0
	return view
}

func (l *Ledger) reasons(view *Snapshot, s Surroundings) []string {
	reasons := []string{}
	switch {
	case view.Authority.Owner == nil:
		reasons = append(reasons, "authority lease not acquired")
	case view.Authority.Stale:
		reasons = append(reasons, "authority lease is stale: "+*view.Authority.StaleReason)
	}
	if s.PendingEvents > 0 && (s.Deferred || s.OldestPending > pendingTooLong) {
		reasons = append(reasons, fmt.Sprintf("replay has %d pending events", s.PendingEvents))
	}
	if age, short := l.jobs.gone.short(l.now, int64(DedupeHorizon), DedupeMax); short {
		reasons = append(reasons, fmt.Sprintf("keys of forgotten jobs are known for %s, not for %s: there are more than %d; publish no job again that is older",
			time.Duration(age).Round(time.Second), DedupeHorizon, DedupeMax-slabSize))
	}
	if id, source := l.Bringing(); id != "" {
		reasons = append(reasons, fmt.Sprintf("a restore of %s was begun and has not ended: nothing is accepted; if none is running, take it again: yardmaster restore <file>", source))
	}
	return append(reasons, l.replay.reasons()...)
}
