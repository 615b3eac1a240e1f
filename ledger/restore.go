package ledger

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Limits of a restore.
const (
	MaxRestorePart  = 64 << 10 // bytes of one part
	maxRestoreBytes = 2 << 30  // bytes of all parts

	// RestoreJump is how far epochs and fences jump at a restore. The cluster
	// from which the backup was made may have continued and must not reach
	// these numbers. Thousands of restores fit below 2^53, the largest integer
	// of JavaScript.
	RestoreJump = 1 << 40

	// ReasonRestored is the reason for the end of dispatches that ran when the
	// backup was made.
	ReasonRestored = "restored"
)

// Errors that refuse a restore.
var (
	ErrNotFresh          = errors.New("this yard has accepted jobs before")
	ErrNotRestoring      = errors.New("this restore is not running, or another one has replaced it")
	ErrRestoreIncomplete = errors.New("the backup's ledger was not received completely")
	ErrRestoring         = errors.New("a backup is being restored; try again when that has ended")
)

// RestoreStage is one step of a restore.
type RestoreStage uint8

// The steps, in order. RestoreBegin replaces a restore that has not ended;
// RestoreAbandon ends one without effect.
const (
	RestoreBegin RestoreStage = iota + 1
	RestorePart
	RestoreFinish
	RestoreAbandon
)

// Restore replaces the ledger by one from a backup, in a cluster that has never
// accepted a job. The backup's ledger is sent in parts because log entries are
// small. The parts are replicated state, so a crash cannot make members differ.
type Restore struct {
	Stage  RestoreStage
	ID     string // identifies the restore
	Source string // RestoreBegin: what is restored, for display
	Number uint64 // RestorePart: from 0
	Data   []byte // RestorePart
	SHA256 []byte // RestoreFinish: of all parts together
	// Lanes are the identities of the lanes that the cluster has in addition to
	// the backup's.
	Lanes []string // RestoreFinish
}

func (*Restore) Kind() Kind { return KindRestore }

// restoreState is a restore in progress.
type restoreState struct {
	id, source string
	parts      [][]byte // only grows, so copies share it
	size       int
}

// Restoring returns the restore in progress; id is "" without one.
func (l *Ledger) Restoring() (id, source string) {
	if l.restoring == nil {
		return "", ""
	}
	return l.restoring.id, l.restoring.source
}

// Fresh reports whether the cluster has never accepted a job or dispatch. It
// must not be called on a copy.
func (l *Ledger) Fresh() bool {
	return len(l.jobs.byID) == 0 && l.forgotten.size == 0 && l.external.byID.Len() == 0 && l.counts == SnapshotBacklog{} &&
		l.nextDeadLetter == 0 && l.nextResult == 0 && !slices.ContainsFunc(l.lanes, func(ln LaneCursor) bool { return ln.Cursor > 0 })
}

// allowedDuringRestore reports whether a command may be applied during a
// restore: one that only maintains the authority or the membership. The restore
// would discard the effect of any other.
func allowedDuringRestore(c Command) bool {
	switch c.(type) {
	case *Restore, *Renew, *Bootstrap, *MarkPublished, *Observe, *RecordWorkerEvents, *SetMembers, *AdvanceMember, *CheckConsistency,
		*AcquireAuthority, *RenewAuthority, *CaptureSnapshot:
		return true
	}
	return false
}

func (c *Restore) apply(l *Ledger) Result {
	if c.Stage == RestoreBegin {
		if !l.Fresh() {
			return Result{Err: ErrNotFresh}
		}
		if pending := l.membership.PendingChange(); pending != "" {
			return Result{Err: fmt.Errorf("%w: %s; restore when it is done", ErrMembersChanging, pending)}
		}
		l.restoring = &restoreState{id: c.ID, source: c.Source}
		return Result{}
	}
	b := l.restoring
	if b == nil || b.id != c.ID {
		return Result{Err: ErrNotRestoring}
	}
	switch c.Stage {
	case RestorePart:
		return l.addRestorePart(c)
	case RestoreFinish:
		return l.finishRestore(c)
	case RestoreAbandon:
		l.restoring = nil
		return Result{}
	}
	return Result{Err: ErrUnknownKind}
}

// addRestorePart adds the next part. A part that was added before is ignored,
// so that its sender may repeat it.
func (l *Ledger) addRestorePart(c *Restore) Result {
	b := *l.restoring
	switch have := uint64(len(b.parts)); {
	case c.Number < have:
		return Result{}
	case c.Number > have:
		return Result{Err: fmt.Errorf("part %d after %d: %w", c.Number, have, ErrRestoreIncomplete)}
	case b.size+len(c.Data) > maxRestoreBytes:
		return Result{Err: fmt.Errorf("more than %d bytes: %w", maxRestoreBytes, ErrRestoreIncomplete)}
	}
	b.parts = append(b.parts, bytes.Clone(c.Data))
	b.size += len(c.Data)
	l.restoring = &b
	return Result{}
}

// finishRestore replaces the ledger by the one that was received, or refuses
// and changes nothing.
func (l *Ledger) finishRestore(c *Restore) Result {
	if !l.Fresh() {
		return Result{Err: ErrNotFresh}
	}
	sum := sha256.New()
	readers := make([]io.Reader, len(l.restoring.parts))
	for i, part := range l.restoring.parts {
		sum.Write(part)
		readers[i] = bytes.NewReader(part)
	}
	if !bytes.Equal(sum.Sum(nil), c.SHA256) {
		return Result{Err: fmt.Errorf("checksum mismatch: %w", ErrRestoreIncomplete)}
	}
	from, err := Decode(io.MultiReader(readers...))
	if err != nil {
		return Result{Err: err}
	}
	l.replaceWith(from, c.Lanes)
	return Result{}
}

// replaceWith replaces the state by that of a backup, except what belongs to
// this cluster: its position in the log, its members, its secret (so that lease
// tokens of the old cluster are invalid) and its term. The authority must be
// acquired again. Dispatches that were active are given back, because their
// executors are not in this cluster.
func (l *Ledger) replaceWith(backup *Ledger, extraLanes []string) {
	backup.fenceBase = max(backup.fence(), l.fence()) + RestoreJump - l.index
	backup.authority = authority{epoch: max(backup.authority.epoch, l.authority.epoch) + RestoreJump, term: l.term}
	backup.index, backup.term, backup.now = l.index, l.term, max(backup.now, l.now)
	backup.secret, backup.streamsCreated, backup.membership = l.secret, true, l.membership
	backup.replay = replay{number: backup.replay.number}
	backup.stalls, backup.hold, backup.restoring = newStalls(), hold{}, nil
	for _, identity := range extraLanes {
		backup.lanes = append(backup.lanes, LaneCursor{Identity: identity})
	}
	backup.begin(l.index, backup.now, nil)
	*l = *backup

	var running []*storedJob
	l.jobs.active.Scan(func(item orderItem) bool {
		running = append(running, item.r)
		return true
	})
	for _, r := range running {
		l.settle(&Settlement{Job: r.id, N: r.n, Next: job.NextGiveBack, Reason: ReasonRestored})
	}
}

func (c *codec) backups(l *Ledger) {
	c.fields(&l.hold.holder, &l.hold.until, &l.fenceBase)
	if r := &l.restoring; optional(c, r) {
		c.fields(&(*r).id, &(*r).source)
		list(c, &(*r).parts, func(part *[]byte) {
			if c.fields(part); c.decoding() {
				(*r).size += len(*part)
			}
		})
	}
}
