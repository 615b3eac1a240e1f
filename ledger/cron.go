package ledger

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Limits of cron entries.
const (
	MaxCrons    = 10_000
	MaxCronBody = 4 << 10 // bytes of the job's Spec as JSON
)

// Errors of commands about cron entries.
var (
	ErrTooManyCrons = fmt.Errorf("the yard already has the maximum of %d cron entries; remove one first", MaxCrons)
	ErrCronNotFound = errors.New("cron entry does not exist")
	ErrCronExists   = errors.New("a different cron entry of this name exists; remove it first or ask to replace it")
	ErrCronDeclared = errors.New("cron entry is declared in the configuration; change it there, on every member")
)

// Cron is a cron entry: which job is created repeatedly, and when. The ledger
// does not interpret Schedule: the result depends on tables of time zones, so
// the authority computes each next tick and commits it as a value.
type Cron struct {
	Name      string // same rules as for a queue name
	Schedule  string // cron expression
	TimeZone  string // IANA time zone of Schedule; "": UTC
	Queue     string
	Body      []byte // the job's Spec as JSON
	CatchUp   bool   // one job makes up for all missed ticks
	NoOverlap bool   // a tick creates no job while the last tick's job has not ended
	Declared  bool   // declared in the configuration, and can only be changed there
}

// Equal reports whether two entries have the same settings.
func (c *Cron) Equal(other *Cron) bool {
	return c.Name == other.Name && c.Schedule == other.Schedule && c.TimeZone == other.TimeZone &&
		c.Queue == other.Queue && bytes.Equal(c.Body, other.Body) &&
		c.CatchUp == other.CatchUp && c.NoOverlap == other.NoOverlap && c.Declared == other.Declared
}

// CronView is a cron entry and its state.
type CronView struct {
	Cron
	Rev         uint64 // changes whenever the next tick is computed again
	Paused      bool
	Next        time.Time // next tick; zero: none
	Last        time.Time // last tick that created a job; zero: none
	LastJob     job.ID
	Fired       uint64    // number of ticks that created a job
	Skipped     uint64    // number of ticks without a job because the last tick's job had not ended
	Missed      uint64    // number of ticks without a job because no node held the authority
	LastUnfired time.Time // last tick that created no job; of several missed ones the first; zero: none
	UnfiredFor  job.ID    // the job that had not ended then; zero: no node held the authority
	Publishing  bool      // the last tick's job is not known to be in a lane yet
}

// Tick is a job of a cron entry that is committed to be created, but not known
// to be in a lane yet.
type Tick struct {
	Job   job.ID
	Queue string
	Body  []byte
}

// cron is the stored form of an entry. It is immutable, and replaced when the
// entry changes.
type cron struct {
	CronView
	tick *Tick // of Last, until its record is ingested; then nil
}

// waits reports whether the entry waits for its next tick: it has one, and the
// last tick's job has been ingested.
func (c *cron) waits() bool { return !c.Next.IsZero() && c.tick == nil }

func cronDueLess(a, b *cron) bool {
	return cmp.Or(a.Next.Compare(b.Next), cmp.Compare(a.Name, b.Name)) < 0
}

// crons holds the cron entries with their indexes.
type crons struct {
	byName *btree.Map[string, *cron]
	byTime *btree.BTreeG[*cron] // those that wait for a tick, by its time
	ticks  map[job.ID]*cron     // entries whose tick is being published; nil in a copy
}

func newCrons() crons {
	return crons{
		byName: new(btree.Map[string, *cron]), byTime: btree.NewBTreeGOptions(cronDueLess, treeOptions),
		ticks: make(map[job.ID]*cron),
	}
}

func (s *crons) copy() crons { return crons{byName: s.byName.Copy(), byTime: s.byTime.Copy()} }

// put replaces old by next in every index. old is nil for a new entry, next is
// nil to remove one.
func (s *crons) put(old, next *cron) {
	if old != nil {
		s.byName.Delete(old.Name)
		if old.waits() {
			s.byTime.Delete(old)
		}
		if old.tick != nil {
			delete(s.ticks, old.tick.Job)
		}
	}
	if next == nil {
		return
	}
	s.byName.Set(next.Name, next)
	if next.waits() {
		s.byTime.Set(next)
	}
	if next.tick != nil {
		s.ticks[next.tick.Job] = next
	}
}

// reschedule sets the entry's next tick, unless the entry is paused, and its
// new revision.
func (c *cron) reschedule(next time.Time, revision uint64) {
	c.Next, c.Rev = next, revision
	if c.Paused {
		c.Next = time.Time{}
	}
}

// apply adds the entry, or changes one of the same name, which keeps its history
// and stays paused. It succeeds without a change if the entry is already as
// requested.
func (c *SetCron) apply(l *Ledger) Result {
	if err := errors.Join(job.ValidQueue(c.Cron.Name), job.ValidQueue(c.Cron.Queue)); err != nil {
		return Result{Err: err}
	}
	old, exists := l.crons.byName.Get(c.Cron.Name)
	switch {
	case exists && old.Equal(&c.Cron):
		return Result{}
	case exists && old.Declared && !c.Cron.Declared:
		return Result{Err: ErrCronDeclared}
	case exists && !c.Replace:
		return Result{Err: ErrCronExists}
	case !exists && l.crons.byName.Len() >= MaxCrons:
		return Result{Err: ErrTooManyCrons}
	}
	next := new(cron)
	if exists {
		*next = *old
	}
	next.Cron = c.Cron
	next.reschedule(c.Next, l.index)
	l.crons.put(old, next)
	l.act(c.By, "cron.add", Event{B: c.Cron.Queue}, c.Cron.Name, settingsOfCron(&c.Cron))
	return Result{}
}

// apply removes the entry. An entry that the configuration declares is removed
// only at the configuration's request.
func (c *RemoveCron) apply(l *Ledger) Result {
	old, exists := l.crons.byName.Get(c.Name)
	switch {
	case !exists:
		return Result{Err: ErrCronNotFound}
	case old.Declared && !c.Declared:
		return Result{Err: ErrCronDeclared}
	}
	l.crons.put(old, nil)
	l.act(c.By, "cron.remove", Event{B: old.Queue}, c.Name, nil)
	return Result{}
}

// apply succeeds without a change if the entry is already as requested.
func (c *PauseCron) apply(l *Ledger) Result {
	old, exists := l.crons.byName.Get(c.Name)
	switch {
	case !exists:
		return Result{Err: ErrCronNotFound}
	case old.Paused == c.Paused:
		return Result{}
	}
	next := *old
	next.Paused = c.Paused
	next.reschedule(c.Next, l.index)
	l.crons.put(old, &next)
	action := "cron.resume"
	if c.Paused {
		action = "cron.pause"
	}
	l.act(c.By, action, Event{B: old.Queue}, c.Name, nil)
	return Result{}
}

// apply applies ticks one by one, and skips one whose entry now waits for
// another tick. Consuming a tick and setting the next one is a single step, so
// no tick is applied twice, whichever authority computed it.
func (c *TickCrons) apply(l *Ledger) Result {
	for i := range c.Ticks {
		tick := &c.Ticks[i]
		old, exists := l.crons.byName.Get(tick.Name)
		if exists && old.waitsFor(tick) {
			l.crons.put(old, l.fireCron(old, tick))
		}
	}
	return Result{}
}

// waitsFor reports whether tick is the next tick of the entry as it is now.
func (c *cron) waitsFor(tick *CronTick) bool {
	return c.waits() && c.Rev == tick.Rev && c.Next.Equal(tick.At)
}

// fireCron returns the entry old after a tick: the tick creates a job, is counted as missed or
// skipped, or has no effect because its job exists.
func (l *Ledger) fireCron(old *cron, tick *CronTick) *cron {
	next := *old
	next.Next = tick.Next
	moves := l.outbox.level >= level8 && !tick.Fire && tick.Missed == 0
	if !tick.Next.After(tick.At) && !moves {
		next.Next = time.Time{}
	}
	next.Missed += uint64(tick.Missed)

	_, ticked := l.Known(job.TickID(tick.Name, tick.At)) // before the clocks were set back
	lastJob, ok := l.State(old.LastJob)
	overlaps := old.NoOverlap && ok && !lastJob.Ended()
	switch {
	case !tick.Fire:
		if tick.Missed > 0 {
			next.LastUnfired, next.UnfiredFor = tick.At, job.ID{}
		}
	case ticked && l.outbox.level >= level8:
	case overlaps:
		next.Skipped++
		next.LastUnfired, next.UnfiredFor = tick.At, old.LastJob
	default:
		next.Fired++
		next.Last, next.LastJob = tick.At, job.TickID(tick.Name, tick.At)
		next.tick = &Tick{Job: next.LastJob, Queue: old.Queue, Body: old.Body}
	}
	return &next
}

// tickIngested records that a record was ingested, whatever the result. If it
// belongs to a tick, that tick need not be published any more.
func (s *crons) tickIngested(id job.ID) {
	if old := s.ticks[id]; old != nil {
		next := *old
		next.tick = nil
		s.put(old, &next)
	}
}

func (c *cron) view() CronView {
	view := c.CronView
	view.Publishing = c.tick != nil
	return view
}

// Cron returns the cron entry of a name.
func (s *crons) Cron(name string) (CronView, bool) {
	entry, ok := s.byName.Get(name)
	if !ok {
		return CronView{}, false
	}
	return entry.view(), true
}

// Crons yields the cron entries in the order of their names, beginning at from,
// until yield returns false.
func (s *crons) Crons(from string, yield func(CronView) bool) {
	s.byName.Ascend(from, func(_ string, entry *cron) bool { return yield(entry.view()) })
}

// DueCrons yields the cron entries that wait for a tick, in the order of their
// next ticks, until yield returns false.
func (s *crons) DueCrons(yield func(CronView) bool) {
	s.byTime.Scan(func(entry *cron) bool { return yield(entry.view()) })
}

// Ticks yields the ticks whose jobs are not known to be in a lane, in no
// particular order. It must not be called on a copy.
func (s *crons) Ticks(yield func(Tick)) {
	for _, entry := range s.ticks {
		yield(*entry.tick)
	}
}

// crons encodes or decodes the cron entries in the order of their names. The
// job of an unpublished tick is not encoded, because it is the entry's last job.
func (c *codec) crons(s *crons) {
	each(c, s.byName.Len(), values(s.byName), func(e *cron) {
		c.fields(&e.Name, &e.Schedule, &e.TimeZone, &e.Queue, &e.Body, &e.CatchUp, &e.NoOverlap, &e.Declared, &e.Paused,
			&e.Next, &e.Last, &e.LastJob, &e.LastUnfired, &e.UnfiredFor, &e.Rev, &e.Fired, &e.Skipped, &e.Missed)
		if optional(c, &e.tick) {
			c.fields(&e.tick.Queue, &e.tick.Body)
		}
		if !c.decoding() {
			return
		}
		if e.tick != nil {
			e.tick.Job = e.LastJob
		}
		s.put(nil, e)
	})
}
