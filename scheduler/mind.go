package scheduler

import (
	"context"
	"sync/atomic"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

// Group commit, in numbers that were measured: fewer, larger writes decide the
// latency.
const (
	maxInFlight = 4
	fullEntry   = 16 << 10              // bytes that are worth an entry of their own
	maxEntry    = 256 << 10             // bytes
	oldEnough   = 3 * time.Millisecond  // what waits behind an entry in flight
	settleAlone = 5 * time.Millisecond  // how long settling waits for a fold to ride with
	toldAlone   = 50 * time.Millisecond // how long the outbox's trimming waits for any other
	inboxSize   = 1024
	drainAtOnce = 256 // posts handled before deciding on an entry
)

// Estimated sizes in an entry, in bytes, beside texts.
const (
	foldSize  = 80
	endSize   = 40
	placeSize = 60
)

// dispatchKey names a dispatch.
type dispatchKey struct {
	id job.ID
	n  uint32
}

// mind is one tenure's knowledge. But for the fields above run, only the
// goroutine of run touches it.
type mind struct {
	sched        *Scheduler
	cfg          Config
	epoch        uint64
	clock        stampClock
	began        time.Time
	trustedUntil atomic.Pointer[time.Time]
	inbox        chan func()
	gone         chan struct{} // closed when the tenure ends
	submitted    chan submission
	applied      chan struct{} // wakes publish: an entry was applied

	entry   entry // what the next entry will carry
	flying  int   // entries in flight
	timer   *time.Timer
	dirty   bool      // something may be placed
	nextDue time.Time // of the next delayed job; zero: none known
	blocked string    // why nothing is folded or placed; "" if all goes on

	lanes     []*laneState
	bodies    bodyCache
	shadow    map[lineKey][]ledger.Waiting // due jobs whose fold is in flight
	placing   map[dispatchKey]*pick        // placements in flight
	taking    map[string]int               // placements in flight by queue
	rooms     map[roomKey]*room
	nodes     map[string]*node
	flights   map[dispatchKey]*flight
	orphansAt time.Time // when sweepOrphans last looked
}

// entry gathers the commands of the next Raft entry.
type entry struct {
	folds    []*pendingFold
	ends     []*pendingEnd
	commands []pendingCommand
	picks    []*pick
	told     *ledger.Told // what the outbox may forget; nil: nothing new
	toldAt   time.Time    // since when it waits
	urgent   time.Time    // since when something waits that should go at once; zero: nothing
	lazy     time.Time    // since when something waits that may wait; zero: nothing
	size     int
}

// pendingCommand is a caller's command and who waits for it.
type pendingCommand struct {
	command ledger.Command
	done    func(ledger.Result, uint64)
}

// submission is an entry in flight and what to do with each result.
type submission struct {
	wait func(context.Context) (Commit, error)
	done []func(ledger.Result, uint64)
}

func newMind(s *Scheduler, clock stampClock, trusted time.Time) *mind {
	m := &mind{
		sched: s, cfg: s.cfg, clock: clock, began: time.Now(),
		inbox: make(chan func(), inboxSize), gone: make(chan struct{}),
		submitted: make(chan submission, maxInFlight), applied: make(chan struct{}, 1),
		timer: time.NewTimer(time.Hour), bodies: newBodyCache(),
		shadow: map[lineKey][]ledger.Waiting{}, placing: map[dispatchKey]*pick{}, taking: map[string]int{},
		rooms: map[roomKey]*room{}, nodes: map[string]*node{}, flights: map[dispatchKey]*flight{},
	}
	m.trustedUntil.Store(&trusted)
	return m
}

func (m *mind) ledger() Ledger { return m.sched.ledger }

// post hands work to the goroutine of run. It waits while the inbox is full
// and drops the work when the tenure is over.
func (m *mind) post(f func()) {
	select {
	case m.inbox <- f:
	case <-m.gone:
	}
}

// close ends the tenure for everybody who posts to it.
func (m *mind) close() { close(m.gone) }

// run is the loop: hear what happened, then decide whether an entry goes.
func (m *mind) run(ctx context.Context) error {
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	defer m.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-m.inbox:
			f()
			m.drain()
		case <-sweep.C:
			m.sweep()
		case <-m.timer.C:
		}
		if err := m.flush(); err != nil {
			return err
		}
	}
}

func (m *mind) drain() {
	for range drainAtOnce {
		select {
		case f := <-m.inbox:
			f()
		default:
			return
		}
	}
}

// flush sends entries for as long as one is due, then sets the timer for the
// next.
func (m *mind) flush() error {
	for m.flying < maxInFlight {
		wait := m.waitFor(time.Now())
		if wait > 0 {
			m.timer.Reset(wait)
			return nil
		}
		sent, err := m.send()
		if err != nil || !sent {
			return err
		}
	}
	return nil
}

// never is how long the loop sleeps when nothing waits.
const never = time.Hour

// waitFor is how long the next entry has to wait: 0 if it is due.
func (m *mind) waitFor(now time.Time) time.Duration {
	if m.dirty {
		m.ledger().View(m.choose)
		m.dirty = false
	}
	untilDue := never
	if !m.nextDue.IsZero() {
		if untilDue = m.nextDue.Sub(m.clock.now()); untilDue <= 0 {
			m.hurry()
		}
	}
	return max(0, min(untilDue, m.waitForEntry(now)))
}

func (m *mind) waitForEntry(now time.Time) time.Duration {
	e := &m.entry
	urgent := !e.urgent.IsZero()
	switch {
	case !urgent && e.lazy.IsZero() && e.told == nil:
		return never
	case !urgent && e.lazy.IsZero():
		return toldAlone - now.Sub(e.toldAt)
	case e.size >= fullEntry || urgent && m.flying == 0:
		return 0
	case urgent:
		return oldEnough - now.Sub(e.urgent)
	}
	return settleAlone - now.Sub(e.lazy)
}

// send builds the entry and submits it. It reports false if there was nothing
// to say after all.
func (m *mind) send() (bool, error) {
	p := Proposal{At: m.clock.now(), Epoch: m.epoch}
	var s submission
	add := func(c ledger.Command, done func(ledger.Result, uint64)) {
		p.Commands = append(p.Commands, c)
		s.done = append(s.done, done)
	}
	m.ledger().View(func(l *ledger.Ledger) {
		m.addFolds(l, p.At, add)
		m.addEnds(l, add)
		for _, c := range m.entry.commands {
			add(c.command, c.done)
		}
		m.choose(l)
		m.addPicks(add)
		if m.entry.told != nil {
			add(m.entry.told, nil)
		}
	})
	if len(p.Commands) == 0 && !m.nextDue.IsZero() && !m.nextDue.After(p.At) {
		add(&ledger.Observe{}, nil) // an entry for its stamp, which promotes what is due
	}
	m.entry = entry{folds: m.entry.folds, ends: m.entry.ends}
	m.leftover()
	m.nextDue = time.Time{} // known again once this entry is applied
	if len(p.Commands) == 0 {
		return false, nil
	}
	wait, err := m.ledger().Submit(p)
	if err != nil {
		return false, err
	}
	s.wait = wait
	m.flying++
	m.submitted <- s
	return true, nil
}

// queue puts a caller's command into the next entry.
func (m *mind) queue(c ledger.Command, done func(ledger.Result, uint64)) {
	m.entry.commands = append(m.entry.commands, pendingCommand{c, done})
	m.entry.size += foldSize
	m.hurry()
}

// hurry marks that something waits which should go at once.
func (m *mind) hurry() {
	if m.entry.urgent.IsZero() {
		m.entry.urgent = time.Now()
	}
}

// idle marks that something waits which may ride with the next entry.
func (m *mind) idle() {
	if m.entry.lazy.IsZero() {
		m.entry.lazy = time.Now()
	}
}

// commits waits for the entries in flight, in their order, and posts what
// became of them.
func (m *mind) commits(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-m.submitted:
			c, err := s.wait(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			m.post(func() { m.committed(s, c) })
		}
	}
}

func (m *mind) committed(s submission, c Commit) {
	m.flying--
	for i, done := range s.done {
		if done != nil {
			done(c.Results[i], c.Index)
		}
	}
	m.dirty = true
	if m.flying == 0 {
		m.ledger().View(func(l *ledger.Ledger) {
			var ok bool
			if m.nextDue, ok = l.NextDue(); !ok {
				m.nextDue = time.Time{}
			}
		})
	}
	if len(m.entry.folds) > 0 {
		m.hurry() // what a full outbox held back may go on
	}
	wake(m.applied)
}

// do commits one command for a caller.
func (m *mind) do(ctx context.Context, c ledger.Command) (ledger.Result, uint64, error) {
	type answer struct {
		result ledger.Result
		index  uint64
	}
	answered := make(chan answer, 1)
	m.post(func() {
		m.queue(c, func(r ledger.Result, index uint64) { answered <- answer{r, index} })
	})
	select {
	case a := <-answered:
		if cancel, ok := c.(*ledger.CancelJob); ok && a.result.Err == nil && a.result.State == job.Active {
			m.post(func() { m.recall(cancel.Job) })
		}
		return a.result, a.index, nil
	case <-m.gone:
		return ledger.Result{}, 0, ErrNoTenure
	case <-ctx.Done():
		return ledger.Result{}, 0, ctx.Err()
	}
}
