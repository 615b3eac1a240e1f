package scheduler

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"sync"
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

// Estimated sizes in an entry, in bytes, beside texts, and the parts of
// maxEntry that an entry's parts may take; placements have maxPicks.
const (
	foldSize    = 80
	guardsSize  = 96
	endSize     = 40
	placeSize   = 60
	commandSize = 160

	maxFolds    = maxEntry / 8 * 3
	maxEnds     = maxEntry / 4
	maxCommands = maxEntry / 8
)

// dispatchKey names a dispatch.
type dispatchKey struct {
	id job.ID
	n  uint32
}

func (k dispatchKey) compare(o dispatchKey) int {
	return cmp.Or(bytes.Compare(k.id[:], o.id[:]), cmp.Compare(k.n, o.n))
}

// mind is one tenure's knowledge. But for the fields above run, only the
// goroutine of run touches it.
type mind struct {
	sched        *Scheduler
	cfg          Config
	epoch        uint64
	fenceBase    uint64 // of fences, above the indexes of entries
	bringing     string // the restore that is under way: there is nothing to decide; "": none is
	clock        stampClock
	began        time.Time
	trustedUntil atomic.Pointer[time.Time]
	inbox        chan func()
	asideMu      sync.Mutex
	aside        []func() // posted by those who must not wait
	asideWake    chan struct{}
	gone         chan struct{} // closed when the loop has ended
	streams      chan struct{} // closed when the yard's streams exist
	open         sync.Once     // closes streams
	submitted    chan submission
	applied      chan struct{} // wakes publish: an entry was applied
	replays      chan struct{} // wakes replay: one was asked for

	entry   entry // what the next entry will carry
	flying  int   // entries in flight
	fenced  error // why the tenure is over; nil while it is not
	timer   *time.Timer
	dirty   bool      // something may be placed
	nextDue time.Time // of the next delayed job; zero: none known
	unmade  string    // what is wrong with the streams; "" if all is well
	blocked string    // why nothing is folded or placed; "" if all goes on
	untold  [3]string // by [Story]: why nothing is published; "" if it is

	stuck    map[string]bool     // what of that time does not mend; see decidable
	blockers map[string]*blocker // what history is told of, by what it is about

	members []string        // who count, by the ledger's roll
	roll    uint64          // its revision
	seated  map[string]bool // who is on it, also who does not count yet, or any more

	lanes     []*laneState
	bodies    bodyCache
	folds     uint64                   // entered so far
	shadow    map[lineKey][]*shadowJob // due jobs whose fold is in flight, by the order of start
	placing   map[dispatchKey]*pick    // placements in flight
	taking    map[string]int           // placements in flight by queue
	rooms     map[roomKey]*room
	turns     []*room // all rooms, which are served first by turns
	turn      int
	nodes     map[string]*node
	flights   map[dispatchKey]*flight
	orphansAt time.Time // when sweepOrphans last looked
	renewedAt time.Time // when the lease's renewal was last queued
	provedAt  time.Time // when a proof was last asked for; zero: not yet
	away      []string  // for which runners jobs wait that no living member has
	crons     cronDesk
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
		sched: s, cfg: s.cfg, clock: clock, began: time.Now(), members: s.cfg.Members,
		inbox: make(chan func(), inboxSize), asideWake: make(chan struct{}, 1), gone: make(chan struct{}), streams: make(chan struct{}),
		submitted: make(chan submission, maxInFlight), applied: make(chan struct{}, 1), replays: make(chan struct{}, 1),
		timer: time.NewTimer(time.Hour), bodies: newBodyCache(),
		shadow: map[lineKey][]*shadowJob{}, placing: map[dispatchKey]*pick{}, taking: map[string]int{},
		rooms: map[roomKey]*room{}, nodes: map[string]*node{}, flights: map[dispatchKey]*flight{},
		crons: newCronDesk(), stuck: map[string]bool{}, blockers: map[string]*blocker{},
	}
	m.trustedUntil.Store(&trusted)
	m.renewedAt = m.began
	return m
}

func (m *mind) ledger() Ledger { return m.sched.ledger }

// post hands work to the goroutine of run. It waits while the inbox is full
// and drops the work when the tenure is over. The loop itself must not call it.
func (m *mind) post(f func()) {
	select {
	case m.inbox <- f:
	case <-m.gone:
	}
}

// postAside is post for answers to what the loop has asked: it never waits,
// because whoever carries them may be the loop itself. There are no more of
// them than assignments on their way.
func (m *mind) postAside(f func()) {
	m.asideMu.Lock()
	m.aside = append(m.aside, f)
	m.asideMu.Unlock()
	wake(m.asideWake)
}

// run is the loop: hear what happened, then decide whether an entry goes. When
// it ends nobody who posts is kept waiting.
func (m *mind) run(ctx context.Context) error {
	defer close(m.gone)
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
		case <-m.asideWake:
			m.drainAside()
		case <-sweep.C:
			m.sweep()
		case <-m.timer.C:
		}
		if err := m.flush(); err != nil {
			return err
		}
	}
}

func (m *mind) drainAside() {
	m.asideMu.Lock()
	posts := m.aside
	m.aside = nil
	m.asideMu.Unlock()
	for _, f := range posts {
		f()
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
	for m.fenced == nil && m.flying < maxInFlight {
		wait := m.waitFor(time.Now())
		if wait == 0 {
			sent, err := m.send()
			if err != nil {
				return err
			}
			if sent {
				continue
			}
			wait = max(m.waitFor(time.Now()), time.Millisecond)
		}
		m.timer.Reset(wait)
		return nil
	}
	return m.fenced
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
	untilCron := m.lookCrons()
	return max(0, min(untilDue, untilCron, m.closeGaps(now), m.waitForEntry(now)))
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

// draft is an entry being built: its commands and what to do with the result
// of each.
type draft struct {
	at       time.Time
	commands []ledger.Command
	done     []func(ledger.Result, uint64)
}

func (d *draft) add(c ledger.Command, done func(ledger.Result, uint64)) {
	d.commands = append(d.commands, c)
	d.done = append(d.done, done)
}

// send builds the entry and submits it. It reports false if there was nothing
// to say after all.
func (m *mind) send() (bool, error) {
	d := &draft{at: m.clock.now()}
	m.ledger().View(func(l *ledger.Ledger) {
		m.addFolds(l, d)
		m.addEnds(l, d)
		m.addCommands(d)
		m.choose(l)
		m.addPicks(d)
	})
	if m.entry.told != nil {
		d.add(m.entry.told, nil)
	}
	if len(d.commands) == 0 && !m.nextDue.IsZero() && !m.nextDue.After(d.at) {
		d.add(&ledger.Observe{}, nil) // an entry for its stamp, which promotes what is due
	}
	m.entry = entry{folds: m.entry.folds, ends: m.entry.ends, commands: m.entry.commands}
	m.leftover()
	if len(d.commands) == 0 {
		return false, nil
	}
	m.nextDue = time.Time{} // known again once this entry is applied
	wait, err := m.ledger().Submit(Proposal{At: d.at, Epoch: m.epoch, Commands: d.commands})
	if err != nil {
		return false, err
	}
	m.flying++
	m.submitted <- submission{wait, d.done}
	return true, nil
}

// addCommands moves callers' commands into the entry.
func (m *mind) addCommands(d *draft) {
	size, n := 0, 0
	for n < len(m.entry.commands) && size < maxCommands {
		c := m.entry.commands[n]
		size += sizeOf(c.command)
		d.add(c.command, c.done)
		n++
	}
	m.entry.commands = m.entry.commands[n:]
}

// sizeOf estimates what a caller's command takes in an entry, in bytes. Its
// texts are bounded by [ledger.Check].
func sizeOf(c ledger.Command) int {
	return commandSize + ledger.TextBytes(c)
}

// leftover counts what stays for the next entry.
func (m *mind) leftover() {
	e := &m.entry
	for _, f := range e.folds {
		for i := range f.records {
			e.size += f.records[i].size()
		}
	}
	for _, end := range e.ends {
		e.size += end.size()
	}
	for _, c := range e.commands {
		e.size += sizeOf(c.command)
	}
	if len(e.ends) > 0 || len(e.commands) > 0 || len(e.folds) > 0 && m.blocked == "" {
		m.hurry()
	}
}

// queue puts a caller's command into the next entry.
func (m *mind) queue(c ledger.Command, done func(ledger.Result, uint64)) {
	if m.ride(c, done) {
		m.hurry()
	}
}

// ride puts a command into the next entry, which may wait for others. False:
// the ledger would refuse it, and it has been answered.
func (m *mind) ride(c ledger.Command, done func(ledger.Result, uint64)) bool {
	if err := ledger.Check(c); err != nil { // no entry for what the ledger would refuse
		if done != nil {
			done(ledger.Result{Err: err}, 0)
		}
		return false
	}
	m.entry.commands = append(m.entry.commands, pendingCommand{c, done})
	m.entry.size += sizeOf(c)
	m.idle()
	return true
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
	for i := range c.Results {
		if errors.Is(c.Results[i].Err, ledger.ErrStaleEpoch) {
			m.fenced = c.Results[i].Err
			return
		}
	}
	for i, done := range s.done {
		if done != nil {
			done(c.Results[i], c.Index)
		}
	}
	m.dirty = true
	m.crons.look = m.crons.look || len(m.crons.sent) > 0 // a fold may have brought a tick's job home
	m.ledger().View(func(l *ledger.Ledger) {
		m.checkOutbox(l)
		m.heedRoll(l)
		if m.flying > 0 {
			return
		}
		var ok bool
		if m.nextDue, ok = l.NextDue(); !ok {
			m.nextDue = time.Time{}
		}
	})
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
	ask := func() {
		if err := m.planCron(c); err != nil {
			answered <- answer{ledger.Result{Err: err}, 0}
			return
		}
		m.queue(c, func(r ledger.Result, index uint64) {
			m.follow(c, r, index)
			answered <- answer{r, index}
		})
	}
	select {
	case m.inbox <- ask:
	case <-m.gone:
		return ledger.Result{}, 0, ErrNoTenure
	case <-ctx.Done():
		return ledger.Result{}, 0, ctx.Err()
	}
	select {
	case a := <-answered:
		return a.result, a.index, nil
	case <-m.gone:
		return ledger.Result{}, 0, ErrUnsettled
	case <-ctx.Done():
		return ledger.Result{}, 0, ctx.Err()
	}
}

// follow does what a caller's command means for running dispatches, cron
// entries and replays.
func (m *mind) follow(c ledger.Command, r ledger.Result, index uint64) {
	m.crons.follow(c)
	if _, ok := c.(*ledger.RequestReplay); ok {
		wake(m.replays)
	}
	if r.Err != nil || r.State != job.Active {
		return
	}
	switch c := c.(type) {
	case *ledger.CancelJob:
		why := job.RecallCancelled
		if c.QueueGone {
			why = job.RecallQueueGone
		}
		m.recall(c.Job, why)
	case *ledger.MoveDispatch:
		m.moved(c, index)
	}
}
