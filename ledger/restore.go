package ledger

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// MaxHold is how long a hold lasts unless it is renewed: a backup whose process
// dies must not block reclaiming for longer.
const MaxHold = 2 * time.Minute

// ErrBackupRunning is returned for a second backup while one is being made.
var ErrBackupRunning = errors.New("a backup is being made already")

// Hold prevents that records and blobs are reclaimed while a backup is made:
// until the given time, at most [MaxHold] from now. The zero time ends the
// hold.
type Hold struct {
	Holder string
	Until  time.Time
	Asked
}

func (*Hold) Kind() Kind { return KindHold }

// hold is the hold of a backup.
type hold struct {
	holder string
	until  int64 // Unix nanoseconds of elapsed time
}

// apply grants the hold to one holder at a time. The hold is in the ledger, so
// that a new authority respects it.
func (c *Hold) apply(l *Ledger) Result {
	if holder, until := l.Holder(); holder != "" && holder != c.Holder {
		return Result{Err: fmt.Errorf("%w, by %s; its hold expires at %s unless renewed", ErrBackupRunning, holder, FormatTime(until))}
	}
	if l.outbox.level > 0 && l.hold.holder != c.Holder && !c.Until.IsZero() {
		l.act(c.By, "yard.backup", Event{}, c.Holder, nil)
	}
	l.hold = hold{}
	if !c.Until.IsZero() {
		l.hold = hold{c.Holder, l.elapsed + min(c.Until.UnixNano()-l.now, int64(MaxHold))}
	}
	return Result{}
}

// Holder returns which backup prevents the reclaiming of lanes and blobs, and
// until when, or "" if none does.
func (l *Ledger) Holder() (holder string, until time.Time) {
	if l.hold.until <= l.elapsed {
		return "", time.Time{}
	}
	return l.hold.holder, l.shown(l.hold.until)
}

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
	Asked
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
	return l.jobs.records.count == 0 && l.forgotten.size == 0 && l.external.byID.Len() == 0 && l.counts == SnapshotBacklog{} &&
		l.nextDeadLetter == 0 && l.nextResult == 0 && !slices.ContainsFunc(l.lanes, func(lane LaneCursor) bool { return lane.Cursor > 0 })
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

// apply carries out one step of a restore. A step of any restore except the one
// that was begun last is refused.
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
	if l.restoring == nil || l.restoring.id != c.ID {
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

// addRestorePart adds the next part of the backup's ledger. A part that was
// added before is ignored, so that its sender may repeat it.
func (l *Ledger) addRestorePart(c *Restore) Result {
	next := *l.restoring
	switch received := uint64(len(next.parts)); {
	case c.Number < received:
		return Result{}
	case c.Number > received:
		return Result{Err: fmt.Errorf("part %d after %d: %w", c.Number, received, ErrRestoreIncomplete)}
	case next.size+len(c.Data) > maxRestoreBytes:
		return Result{Err: fmt.Errorf("more than %d bytes: %w", maxRestoreBytes, ErrRestoreIncomplete)}
	}
	next.parts = append(next.parts, bytes.Clone(c.Data))
	next.size += len(c.Data)
	l.restoring = &next
	return Result{}
}

// finishRestore replaces the ledger by the one whose parts were received. It
// refuses and changes nothing if the parts are incomplete or corrupt, or if the
// ledger is not fresh any more.
func (l *Ledger) finishRestore(c *Restore) Result {
	if !l.Fresh() {
		return Result{Err: ErrNotFresh}
	}
	checksum := sha256.New()
	readers := make([]io.Reader, len(l.restoring.parts))
	for i, part := range l.restoring.parts {
		checksum.Write(part)
		readers[i] = bytes.NewReader(part)
	}
	if !bytes.Equal(checksum.Sum(nil), c.SHA256) {
		return Result{Err: fmt.Errorf("checksum mismatch: %w", ErrRestoreIncomplete)}
	}
	backup, err := Decode(io.MultiReader(readers...))
	if err != nil {
		return Result{Err: err}
	}
	source := l.restoring.source
	l.replaceWith(backup, c.Lanes, func() { l.act(c.By, "yard.restore", Event{}, source, settingsOfMembers(l.membership.Members)) })
	return Result{}
}

// replaceWith replaces the state by that of a backup, except what belongs to
// this cluster: its position in the log, its members, its term, and its secret,
// so that lease tokens of the old cluster are invalid. The authority must be
// acquired again. Dispatches that were active are given back, because their
// executors are not in this cluster. It calls record when the state is replaced.
func (l *Ledger) replaceWith(backup *Ledger, extraLanes []string, record func()) {
	backup.fenceBase = max(backup.fence(), l.fence()) + RestoreJump - l.index
	backup.authority = authority{epoch: max(backup.authority.epoch, l.authority.epoch) + RestoreJump, term: l.term}
	backup.index, backup.term = l.index, l.term
	backup.raiseLevel(l.outbox.level)
	backup.follow(&l.clocks)
	backup.secret, backup.streams, backup.membership = l.secret, StreamGeneration, l.membership
	backup.replay = replay{number: backup.replay.number}
	backup.stalls, backup.hold, backup.restoring, backup.revived, backup.released = newStalls(), hold{}, nil, l.index, l.index
	for _, identity := range extraLanes {
		backup.lanes = append(backup.lanes, LaneCursor{Identity: identity, IngestedUntil: backup.emptyUntil()})
	}
	backup.begin(l.index, backup.now, nil)
	if l.changes != nil {
		backup.changes = l.changes
		backup.changes.replaced()
	}
	backup.transitions = l.transitions
	*l = *backup
	record()
	l.pauseRestored()

	var running []*storedJob // settling changes the index of active jobs
	for item := range l.jobs.active.Scan {
		running = append(running, l.jobs.at(item.number))
	}
	for _, stored := range running {
		l.settle(&Settlement{Job: stored.id, N: stored.n, Next: job.NextGiveBack, Reason: ReasonRestored})
	}
}

// backups encodes the fields of l that backups and restores use, or decodes them into l:
// the hold with which a running backup keeps records from being removed, the fence base,
// which a restore raises, and the restore in progress, if there is one.
func (c *codec) backups(l *Ledger) {
	c.fields(&l.hold.holder, &l.hold.until, &l.fenceBase)
	if !optional(c, &l.restoring) { // when decoding, it also allocates l.restoring
		return
	}
	restoring := l.restoring
	c.fields(&restoring.id, &restoring.source)
	list(c, &restoring.parts, func(part *[]byte) { c.fields(part) })
	if c.decoding() { // the size is not encoded
		for _, part := range restoring.parts {
			restoring.size += len(part)
		}
	}
}
