package consensus

import "math/rand/v2"

const (
	// snapshotFactor is the size of the entries between two snapshots, as a multiple
	// of the size of the last one: writing snapshots then costs at most half as much
	// as writing the log, however large the ledger is.
	snapshotFactor = 2

	// maxSnapshotInterval is the size of the entries after which a snapshot is due at
	// the latest, because a node applies all of them when it starts.
	maxSnapshotInterval = 1 << 30

	// entryOverhead is what an entry costs in the log's file beside its data.
	entryOverhead = 128
)

// snapshotTrigger decides when a snapshot is due, and how many entries should remain
// in the log before it. Its methods must not be called at the same time.
type snapshotTrigger struct {
	minBytes int64          // least size of the entries between two snapshots
	spread   func() float64 // in [0, 1); keeps the members from taking snapshots at the same time
	due      chan struct{}  // signals that a snapshot is due

	limit          int64 // size of the entries after which the next snapshot is due
	bytes, entries int64 // applied since the last snapshot
	meanSize       int64 // of the entries between the last two snapshots; 0: not known
}

// newSnapshotTrigger returns a trigger for snapshots after entries of at least minBytes.
func newSnapshotTrigger(minBytes int64) snapshotTrigger {
	t := snapshotTrigger{minBytes: minBytes, spread: rand.Float64, due: make(chan struct{}, 1)}
	t.setLimit(0)
	return t
}

// setLimit sets the limit for a snapshot of the given size, and adds up to half of it at
// random.
func (t *snapshotTrigger) setLimit(snapshotSize int64) {
	limit := min(max(t.minBytes, snapshotFactor*snapshotSize), max(t.minBytes, maxSnapshotInterval))
	t.limit = limit + int64(t.spread()*float64(limit)/2)
}

// applied counts an applied entry of this size, and signals if a snapshot is due.
func (t *snapshotTrigger) applied(size int) {
	t.entries++
	if t.bytes += int64(size) + entryOverhead; t.bytes >= t.limit {
		select {
		case t.due <- struct{}{}:
		default:
		}
	}
}

// reset begins a new count, and clears due, which entries applied between that signal
// and the snapshot have set again. Raft calls Apply, Snapshot and Restore from one
// goroutine, so no later signal can be for entries that the snapshot covers.
func (t *snapshotTrigger) reset() {
	if t.entries > 0 {
		t.meanSize = t.bytes / t.entries
	}
	t.bytes, t.entries = 0, 0
	select {
	case <-t.due:
	default:
	}
}

// entriesIn returns how many entries of the mean size since the last snapshot have this
// size together, at least 1.
func (t *snapshotTrigger) entriesIn(bytes int64) uint64 {
	mean := t.meanSize
	if t.entries > 0 {
		mean = t.bytes / t.entries
	}
	return uint64(max(bytes/max(mean, entryOverhead), 1))
}
