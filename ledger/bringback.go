package ledger

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"

	"yardmaster/job"
)

// Bounds of a ledger that is brought back.
const (
	MaxBringPart  = 64 << 10 // bytes of one part
	maxBringBytes = 2 << 30  // bytes of all parts

	// BringStep is how far epochs and fences jump. The yard that the backup was
	// made of may have gone on: it must not have come so far. It leaves room for
	// thousands of restores below 2^53, where JavaScript's integers end.
	BringStep = 1 << 40

	// ReasonRestored ends the dispatches that ran when a backup was made.
	ReasonRestored = "restored"
)

// Errors that refuse to bring a ledger back.
var (
	ErrNotFresh  = errors.New("this yard has accepted jobs before")
	ErrBringSeat = errors.New("this restore is not under way, or another one has taken its place")
	ErrBringPart = errors.New("the backup's ledger has not arrived whole")
	ErrBringing  = errors.New("a backup is being restored: nothing else is changed meanwhile")
)

// BringStage is one step of bringing a ledger back.
type BringStage uint8

// The steps, in their order. BringBegin takes the place of one that was begun
// and not ended; BringAbandon leaves the yard as fresh as it was.
const (
	BringBegin BringStage = iota + 1
	BringPart
	BringFinish
	BringAbandon
)

// BringBack brings back a ledger out of a backup, into a yard that has never
// accepted anything. It comes in parts, because an entry is small; all of them
// are state, so that no crash leaves members that differ.
type BringBack struct {
	Stage  BringStage
	ID     string // of this restore
	Source string // BringBegin: what is restored, for people
	Number uint64 // BringPart: from 0
	Data   []byte // BringPart
	SHA256 []byte // BringFinish: of all parts together
	// Lanes are the identities of lanes that the yard gets beside the backup's.
	Lanes []string // BringFinish
}

func (*BringBack) Kind() Kind { return KindBringBack }

// bringing is a restore under way; nil while there is none.
type bringing struct {
	id, source string
	parts      [][]byte // only grows, so copies share it
	size       int
}

// Bringing tells which restore is under way; id is "" if none is.
func (l *Ledger) Bringing() (id, source string) {
	if l.bringing == nil {
		return "", ""
	}
	return l.bringing.id, l.bringing.source
}

// Fresh tells that nothing was ever accepted here. It is for the original: a
// [Ledger.Copy] does not know.
func (l *Ledger) Fresh() bool {
	untouched := func(ln lane) bool { return ln.cursor == 0 }
	return len(l.jobs.byID) == 0 && l.jobs.gone.size == 0 && l.own.byID.Len() == 0 && l.counts == Counts{} &&
		l.outbox.nextDead == 0 && l.outbox.nextResult == 0 && !slices.ContainsFunc(l.lanes, func(ln lane) bool { return !untouched(ln) })
}

// besideBringing tells which commands go on while a ledger is brought back: those
// that keep the authority and its yard. What any other did would be forgotten.
func besideBringing(c Command) bool {
	switch c.(type) {
	case *BringBack, *Renew, *Found, *Told, *Observe, *NoteWorkers, *SetMembers, *StepMember, *Prove,
		*AcquireAuthority, *RenewAuthority, *CaptureSnapshot:
		return true
	}
	return false
}

func (l *Ledger) bringBack(c *BringBack) Result {
	if c.Stage == BringBegin {
		if !l.Fresh() {
			return Result{Err: ErrNotFresh}
		}
		if under := l.roll.Under(); under != "" {
			return Result{Err: fmt.Errorf("%w: %s; restore when it is done", ErrMembersChanging, under)}
		}
		l.bringing = &bringing{id: c.ID, source: c.Source}
		return Result{}
	}
	b := l.bringing
	if b == nil || b.id != c.ID {
		return Result{Err: ErrBringSeat}
	}
	switch c.Stage {
	case BringPart:
		return l.bringPart(c)
	case BringFinish:
		return l.finishBringing(c)
	case BringAbandon:
		l.bringing = nil
		return Result{}
	}
	return Result{Err: ErrUnknownKind}
}

// bringPart takes the next part; one that came before changes nothing, so that
// its sender may repeat what it heard no answer to.
func (l *Ledger) bringPart(c *BringBack) Result {
	b := *l.bringing
	switch have := uint64(len(b.parts)); {
	case c.Number < have:
		return Result{}
	case c.Number > have:
		return Result{Err: fmt.Errorf("part %d after %d: %w", c.Number, have, ErrBringPart)}
	case b.size+len(c.Data) > maxBringBytes:
		return Result{Err: fmt.Errorf("more than %d bytes: %w", maxBringBytes, ErrBringPart)}
	}
	b.parts = append(b.parts, bytes.Clone(c.Data))
	b.size += len(c.Data)
	l.bringing = &b
	return Result{}
}

// finishBringing becomes the ledger that came, or stays as it is.
func (l *Ledger) finishBringing(c *BringBack) Result {
	if !l.Fresh() {
		return Result{Err: ErrNotFresh}
	}
	sum := sha256.New()
	readers := make([]io.Reader, len(l.bringing.parts))
	for i, part := range l.bringing.parts {
		sum.Write(part)
		readers[i] = bytes.NewReader(part)
	}
	if !bytes.Equal(sum.Sum(nil), c.SHA256) {
		return Result{Err: fmt.Errorf("its sum is another one: %w", ErrBringPart)}
	}
	from, err := Decode(io.MultiReader(readers...))
	if err != nil {
		return Result{Err: err}
	}
	l.become(from, c.Lanes)
	return Result{}
}

// become takes over what a ledger holds, and keeps what is this yard's own: its
// place in the log, its members, its secret, which makes the old yard's tokens worth
// nothing, and who decides. What ran there is given back: nobody here runs it.
func (l *Ledger) become(from *Ledger, further []string) {
	from.fenceBase = max(from.fence(), l.fence()) + BringStep - l.index
	from.authority = authority{epoch: max(from.authority.epoch, l.authority.epoch) + BringStep, term: l.term}
	from.index, from.term, from.now = l.index, l.term, max(from.now, l.now)
	from.secret, from.made, from.roll = l.secret, true, l.roll
	from.replay = replay{number: from.replay.number}
	from.stalls, from.held, from.bringing = newStalls(), hold{}, nil
	for _, identity := range further {
		from.lanes = append(from.lanes, lane{identity: identity})
	}
	from.outbox.begin(l.index, from.now, nil)
	*l = *from

	var running []*record
	l.jobs.active.Scan(func(item orderItem) bool {
		running = append(running, item.r)
		return true
	})
	for _, r := range running {
		l.end(&End{Job: r.id, N: r.n, Next: job.Back, Reason: ReasonRestored})
	}
}

// fence is the number of whatever this entry notifies. It grows over all
// dispatches, also beyond a restore.
func (l *Ledger) fence() uint64 { return l.fenceBase + l.index }

// FenceBase is what fences are above the indexes of their entries. It changes
// only when a ledger is brought back.
func (l *Ledger) FenceBase() uint64 { return l.fenceBase }

func (e *encoder) backups(l *Ledger) {
	e.text(l.held.holder)
	e.int(l.held.until)
	e.uint(l.fenceBase)
	if e.optional(l.bringing != nil) {
		e.text(l.bringing.id)
		e.text(l.bringing.source)
		e.uint(uint64(len(l.bringing.parts)))
		for _, part := range l.bringing.parts {
			e.bytes(part)
		}
	}
}

func (d *decoder) backups(l *Ledger) {
	l.held = hold{d.text(), d.int()}
	l.fenceBase = d.uint()
	if d.bool() {
		l.bringing = &bringing{id: d.text(), source: d.text()}
		d.times(func() {
			part := d.bytes()
			l.bringing.parts = append(l.bringing.parts, part)
			l.bringing.size += len(part)
		})
	}
}
