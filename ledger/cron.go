package ledger

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/tidwall/btree"

	"yardmaster/job"
)

// Bounds of cron entries.
const (
	MaxCrons    = 10_000
	MaxCronBody = 4 << 10 // bytes of the job that an entry makes
)

// What a command about a cron entry is refused with.
var (
	ErrTooManyCrons = fmt.Errorf("the yard has %d cron entries, its most; remove one first", MaxCrons)
	ErrCronNotFound = errors.New("cron entry does not exist")
	ErrCronExists   = errors.New("a cron entry of this name says something else; remove it first or ask to replace it")
	ErrCronDeclared = errors.New("cron entry is declared in the configuration; change it there, on every member")
)

// Cron is a cron entry: which job is made again and again, and when. The
// ledger cannot read its Times: what they come to depends on tables of time
// zones, so the authority computes each next tick and commits it as a value.
type Cron struct {
	Name     string // as a queue's
	Times    string // cron expression
	Zone     string // IANA time zone that Times are in; "" for UTC
	Queue    string
	Body     []byte // the job's Spec as JSON
	CatchUp  bool   // ticks that were missed are made up for, by one job for them all
	Alone    bool   // a tick makes no job while the last one's has not ended
	Declared bool   // in the configuration, which alone may change it
}

// Same tells that two entries say the same.
func (c *Cron) Same(o *Cron) bool {
	return c.Name == o.Name && c.Times == o.Times && c.Zone == o.Zone && c.Queue == o.Queue && bytes.Equal(c.Body, o.Body) &&
		c.CatchUp == o.CatchUp && c.Alone == o.Alone && c.Declared == o.Declared
}

// CronView is a cron entry and how it stands.
type CronView struct {
	Cron
	Rev      uint64 // changes whenever the next tick is computed anew
	Paused   bool
	Next     time.Time // tick; zero: none
	Last     time.Time // tick that made a job; zero: none
	LastJob  job.ID
	Fired    uint64    // ticks that made a job
	Skipped  uint64    // ticks that made none, because the last one's job had not ended
	Overdue  uint64    // ticks that made none, because nobody held the authority
	Left     time.Time // the last tick that made none; of missed ones, the first; zero: none
	LeftFor  job.ID    // whose job had not ended; zero: nobody held the authority
	Emerging bool      // the last tick's job lies in no lane yet, as far as is known
}

// Tick is a job that a cron entry has committed to make, and that no lane is
// known to hold yet.
type Tick struct {
	Job   job.ID
	Queue string
	Body  []byte
}

// cron is an entry's record. It is immutable, replaced when it changes.
type cron struct {
	CronView
	tick *Tick // of Last, until it is folded; then nil
}

// due is the tick that the entry waits for; ok is false if it waits for none,
// or for the last tick's job to lie in a lane.
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
	ticks  map[job.ID]*cron // whose tick is on its way; nil in a copy
}

func newCrons() crons {
	return crons{
		byName: new(btree.Map[string, *cron]), byTime: btree.NewBTreeGOptions(cronDueLess, treeOptions),
		ticks: make(map[job.ID]*cron),
	}
}

func (s *crons) copy() crons { return crons{byName: s.byName.Copy(), byTime: s.byTime.Copy()} }

// put replaces an entry's record; nil stands for none.
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

func (l *Ledger) setCron(c *SetCron) Result {
	if err := errors.Join(job.ValidQueue(c.Cron.Name), job.ValidQueue(c.Cron.Queue)); err != nil {
		return Result{Err: err}
	}
	old, known := l.crons.byName.Get(c.Cron.Name)
	switch {
	case known && old.Same(&c.Cron):
		return Result{}
	case known && old.Declared && !c.Cron.Declared:
		return Result{Err: ErrCronDeclared}
	case known && !c.Replace:
		return Result{Err: ErrCronExists}
	case !known && l.crons.byName.Len() >= MaxCrons:
		return Result{Err: ErrTooManyCrons}
	}
	next := new(cron)
	if known { // what it did and whether it is paused stays
		*next = *old
	}
	next.Cron, next.Next, next.Rev = c.Cron, c.Next, l.index
	if next.Paused {
		next.Next = time.Time{}
	}
	l.crons.put(old, next)
	return Result{}
}

func (l *Ledger) removeCron(c *RemoveCron) Result {
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

// pauseCron may be said twice: whoever pauses wants it paused.
func (l *Ledger) pauseCron(c *PauseCron) Result {
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

// tickCrons takes ticks, each on its own: one whose entry waits for another
// tick by now is left out. That a tick has come and which one is next is one
// step, so that no tick comes twice, whoever computed it.
func (l *Ledger) tickCrons(c *TickCrons) Result {
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
		next.Overdue += uint64(t.Missed)
		switch {
		case !t.Fire:
			if t.Missed > 0 {
				next.Left, next.LeftFor = t.At, job.ID{}
			}
		case old.Alone && l.unended(old.LastJob):
			next.Skipped++
			next.Left, next.LeftFor = t.At, old.LastJob
		default:
			next.Fired++
			next.Last, next.LastJob = t.At, job.TickID(t.Name, t.At)
			next.tick = &Tick{Job: next.LastJob, Queue: old.Queue, Body: old.Body}
		}
		l.crons.put(old, &next)
	}
	return Result{}
}

func (l *Ledger) unended(id job.ID) bool {
	r := l.jobs.byID[id]
	return r != nil && !r.state.Ended()
}

// landed notes that a record was folded, whatever became of it: a tick that it
// belongs to need not be published any more.
func (l *Ledger) landed(id job.ID) {
	old := l.crons.ticks[id]
	if old == nil {
		return
	}
	next := *old
	next.tick = nil
	l.crons.put(old, &next)
}

func (c *cron) view() CronView {
	v := c.CronView
	v.Emerging = c.tick != nil
	return v
}

// Cron finds a cron entry.
func (l *Ledger) Cron(name string) (CronView, bool) {
	c, ok := l.crons.byName.Get(name)
	if !ok {
		return CronView{}, false
	}
	return c.view(), true
}

// Crons yields the cron entries from a name on, by name, until yield returns
// false.
func (l *Ledger) Crons(from string, yield func(CronView) bool) {
	l.crons.byName.Ascend(from, func(_ string, c *cron) bool { return yield(c.view()) })
}

// DueCrons yields the cron entries that wait for a tick, in the order of their
// ticks, until yield returns false.
func (l *Ledger) DueCrons(yield func(CronView) bool) {
	l.crons.byTime.Scan(func(due cronDue) bool { return yield(due.c.view()) })
}

// Ticks yields the jobs of ticks that no lane is known to hold, in no order.
// Only the original ledger can tell, not a copy.
func (l *Ledger) Ticks(yield func(Tick)) {
	for _, c := range l.crons.ticks {
		yield(*c.tick)
	}
}

func (e *encoder) crons(s *crons) {
	e.uint(uint64(s.byName.Len()))
	s.byName.Scan(func(_ string, c *cron) bool {
		for _, text := range [...]string{c.Name, c.Times, c.Zone, c.Queue} {
			e.text(text)
		}
		e.bytes(c.Body)
		for _, is := range [...]bool{c.CatchUp, c.Alone, c.Declared, c.Paused} {
			e.bool(is)
		}
		e.time(c.Next)
		e.time(c.Last)
		e.id(c.LastJob)
		e.time(c.Left)
		e.id(c.LeftFor)
		for _, n := range [...]uint64{c.Rev, c.Fired, c.Skipped, c.Overdue} {
			e.uint(n)
		}
		if e.optional(c.tick != nil) {
			e.text(c.tick.Queue)
			e.bytes(c.tick.Body)
		}
		return e.err == nil
	})
}

func (d *decoder) crons(s *crons) {
	d.times(func() {
		c := new(cron)
		for _, text := range [...]*string{&c.Name, &c.Times, &c.Zone, &c.Queue} {
			*text = d.text()
		}
		c.Body = d.bytes()
		for _, is := range [...]*bool{&c.CatchUp, &c.Alone, &c.Declared, &c.Paused} {
			*is = d.bool()
		}
		c.Next, c.Last, c.LastJob = d.time(), d.time(), d.id()
		c.Left, c.LeftFor = d.time(), d.id()
		for _, n := range [...]*uint64{&c.Rev, &c.Fired, &c.Skipped, &c.Overdue} {
			*n = d.uint()
		}
		if d.bool() {
			c.tick = &Tick{Job: c.LastJob, Queue: d.text(), Body: d.bytes()}
		}
		s.put(nil, c)
	})
}
