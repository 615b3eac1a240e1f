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
func (c *Cron) Equal(o *Cron) bool {
	return c.Name == o.Name && c.Schedule == o.Schedule && c.TimeZone == o.TimeZone && c.Queue == o.Queue && bytes.Equal(c.Body, o.Body) &&
		c.CatchUp == o.CatchUp && c.NoOverlap == o.NoOverlap && c.Declared == o.Declared
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

// due returns the entry's place in the order of due ticks. ok is false if the
// entry has no next tick, or still waits for the last tick's job to be
// ingested.
func (c *cron) due() (at cronDue, ok bool) {
	return cronDue{c.Next.UnixNano(), c}, !c.Next.IsZero() && c.tick == nil
}

type cronDue struct {
	at int64 // unix nanoseconds
	c  *cron
}

func cronDueLess(a, b cronDue) bool {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.c.Name, b.c.Name)) < 0
}

type crons struct {
	byName *btree.Map[string, *cron]
	byTime *btree.BTreeG[cronDue]
	ticks  map[job.ID]*cron // entries whose tick is being published; nil in a copy
}

func newCrons() crons {
	return crons{
		byName: new(btree.Map[string, *cron]), byTime: btree.NewBTreeGOptions(cronDueLess, treeOptions),
		ticks: make(map[job.ID]*cron),
	}
}

func (s *crons) copy() crons { return crons{byName: s.byName.Copy(), byTime: s.byTime.Copy()} }

// put replaces old with c. old is nil for a new entry, c is nil to remove one.
func (s *crons) put(old, c *cron) {
	if old != nil {
		s.byName.Delete(old.Name)
		if due, ok := old.due(); ok {
			s.byTime.Delete(due)
		}
		if old.tick != nil {
			delete(s.ticks, old.tick.Job)
		}
	}
	if c == nil {
		return
	}
	s.byName.Set(c.Name, c)
	if due, ok := c.due(); ok {
		s.byTime.Set(due)
	}
	if c.tick != nil {
		s.ticks[c.tick.Job] = c
	}
}

func (c *SetCron) apply(l *Ledger) Result {
	if err := errors.Join(job.ValidQueue(c.Cron.Name), job.ValidQueue(c.Cron.Queue)); err != nil {
		return Result{Err: err}
	}
	old, known := l.crons.byName.Get(c.Cron.Name)
	switch {
	case known && old.Equal(&c.Cron):
		return Result{}
	case known && old.Declared && !c.Cron.Declared:
		return Result{Err: ErrCronDeclared}
	case known && !c.Replace:
		return Result{Err: ErrCronExists}
	case !known && l.crons.byName.Len() >= MaxCrons:
		return Result{Err: ErrTooManyCrons}
	}
	next := new(cron)
	if known { // keeps its history and whether it is paused
		*next = *old
	}
	next.Cron, next.Next, next.Rev = c.Cron, c.Next, l.index
	if next.Paused {
		next.Next = time.Time{}
	}
	l.crons.put(old, next)
	return Result{}
}

func (c *RemoveCron) apply(l *Ledger) Result {
	old, known := l.crons.byName.Get(c.Name)
	switch {
	case !known:
		return Result{Err: ErrCronNotFound}
	case old.Declared && !c.Declared:
		return Result{Err: ErrCronDeclared}
	}
	l.crons.put(old, nil)
	return Result{}
}

// apply succeeds without a change if the entry is already as requested.
func (c *PauseCron) apply(l *Ledger) Result {
	old, known := l.crons.byName.Get(c.Name)
	switch {
	case !known:
		return Result{Err: ErrCronNotFound}
	case old.Paused == c.Paused:
		return Result{}
	}
	next := *old
	next.Paused, next.Next, next.Rev = c.Paused, c.Next, l.index
	if c.Paused {
		next.Next = time.Time{}
	}
	l.crons.put(old, &next)
	return Result{}
}

// apply applies ticks one by one, and skips one whose entry now waits for
// another tick. Consuming a tick and setting the next one is a single step, so
// no tick is applied twice, whichever authority computed it.
func (c *TickCrons) apply(l *Ledger) Result {
	unfinished := func(id job.ID) bool {
		state, ok := l.State(id)
		return ok && !state.Ended()
	}
	for i := range c.Ticks {
		t := &c.Ticks[i]
		old, known := l.crons.byName.Get(t.Name)
		if !known || old.Rev != t.Rev || old.Next.IsZero() || !old.Next.Equal(t.At) || old.tick != nil {
			continue
		}
		next := *old
		next.Next = t.Next
		if !t.Next.After(t.At) {
			next.Next = time.Time{}
		}
		next.Missed += uint64(t.Missed)
		switch {
		case !t.Fire:
			if t.Missed > 0 {
				next.LastUnfired, next.UnfiredFor = t.At, job.ID{}
			}
		case old.NoOverlap && unfinished(old.LastJob):
			next.Skipped++
			next.LastUnfired, next.UnfiredFor = t.At, old.LastJob
		default:
			next.Fired++
			next.Last, next.LastJob = t.At, job.TickID(t.Name, t.At)
			next.tick = &Tick{Job: next.LastJob, Queue: old.Queue, Body: old.Body}
		}
		l.crons.put(old, &next)
	}
	return Result{}
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
	v := c.CronView
	v.Publishing = c.tick != nil
	return v
}

// Cron returns the cron entry of a name.
func (s *crons) Cron(name string) (CronView, bool) {
	c, ok := s.byName.Get(name)
	if !ok {
		return CronView{}, false
	}
	return c.view(), true
}

// Crons yields the cron entries in the order of their names, beginning at from,
// until yield returns false.
func (s *crons) Crons(from string, yield func(CronView) bool) {
	s.byName.Ascend(from, func(_ string, c *cron) bool { return yield(c.view()) })
}

// DueCrons yields the cron entries that wait for a tick, in the order of their
// next ticks, until yield returns false.
func (s *crons) DueCrons(yield func(CronView) bool) {
	s.byTime.Scan(func(due cronDue) bool { return yield(due.c.view()) })
}

// Ticks yields the ticks whose jobs are not known to be in a lane, in no
// particular order. It must not be called on a copy.
func (s *crons) Ticks(yield func(Tick)) {
	for _, c := range s.ticks {
		yield(*c.tick)
	}
}

func (c *codec) crons(s *crons) {
	stored := func(yield func(*cron) bool) {
		s.byName.Scan(func(_ string, e *cron) bool { return yield(e) })
	}
	each(c, s.byName.Len(), stored, func(e *cron) {
		c.fields(&e.Name, &e.Schedule, &e.TimeZone, &e.Queue, &e.Body, &e.CatchUp, &e.NoOverlap, &e.Declared, &e.Paused,
			&e.Next, &e.Last, &e.LastJob, &e.LastUnfired, &e.UnfiredFor, &e.Rev, &e.Fired, &e.Skipped, &e.Missed)
		if optional(c, &e.tick) {
			c.fields(&e.tick.Queue, &e.tick.Body)
		}
		if c.decoding() {
			if e.tick != nil {
				e.tick.Job = e.LastJob
			}
			s.put(nil, e)
		}
	})
}
