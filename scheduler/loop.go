package scheduler

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Parameters of group commit. The values were measured: fewer and larger writes
// give the lowest latency.
const (
	maxInFlight   = 4                     // entries
	fullEntrySize = 16 << 10              // bytes from which an entry is submitted at once
	maxEntrySize  = 256 << 10             // bytes
	entryMaxWait  = 3 * time.Millisecond  // how long urgent commands wait while an entry is in flight
	settleMaxWait = 5 * time.Millisecond  // how long outcomes wait for urgent commands to share an entry with
	trimMaxWait   = 50 * time.Millisecond // how long MarkPublished waits for another command to share an entry with
	inboxSize     = 1024
	drainBatch    = 256 // posts handled before the next decision about an entry
)

// Estimated sizes of an entry's parts in bytes, without their texts, and the shares
// of maxEntrySize that they may use. Placements are limited by maxPlacements.
const (
	recordSize    = 80
	guardsSize    = 96
	outcomeSize   = 40
	placementSize = 60
	commandSize   = 160

	maxIngestSize  = maxEntrySize / 8 * 3
	maxOutcomeSize = maxEntrySize / 4
	maxCommandSize = maxEntrySize / 8
)

// dispatchKey identifies a dispatch: the n-th one of a job.
type dispatchKey struct {
	id job.ID
	n  uint32
}

func (k dispatchKey) compare(o dispatchKey) int {
	return cmp.Or(bytes.Compare(k.id[:], o.id[:]), cmp.Compare(k.n, o.n))
}

// tenure is the state of one tenure: an event loop and what it owns. The first
// group of fields may be used by any goroutine; the others belong to the goroutine
// of run.
type tenure struct {
	sched        *Scheduler
	cfg          Config
	epoch        uint64
	ackSeq       uint64     // number of the last acknowledged heartbeat; owned by run
	fenceBase    uint64     // added to the index of an entry to give the fence of its dispatches
	restoring    string     // id of the restore in progress, during which nothing is scheduled; "": none
	clock        stampClock // owned by run
	startedAt    time.Time
	trustedUntil atomic.Pointer[time.Time] // by this node's monotonic clock
	inbox        chan func()
	replyMu      sync.Mutex
	replies      []func() // posted by postReply, guarded by replyMu
	replyWake    chan struct{}
	done         chan struct{} // closed when the loop has ended
	streamsReady chan struct{} // closed when the cluster's streams exist
	streamsOnce  sync.Once     // closes streamsReady
	submitted    chan submission
	applied      chan struct{} // wakes publish: an entry was applied
	replayWake   chan struct{} // wakes replay: a replay was requested

	entry          pendingEntry // the next entry
	inFlight       int          // entries in flight
	ended          error        // why the tenure must end; nil while it may continue
	timer          *time.Timer
	placeDirty     bool      // a waiting job may have become placeable
	nextDue        time.Time // when the next delayed job is due; zero: not known, or there is none
	streamsProblem string    // what is wrong with the streams; "": nothing
	blocked        string    // why no job is ingested; "": jobs are
	unpublished    [3]string // by [Stream]: why nothing is published; "": everything is

	needsOperator map[string]bool     // by topic: whether its last error needs an operator's decision; see setNeedsOperator
	blockers      map[string]*blocker // lasting conditions, by topic; see publishBlocked

	members            []string        // names of the members that count, by the ledger's membership
	membershipRevision uint64          // revision that members and listed were taken from
	listed             map[string]bool // every node in the membership, also joining and leaving ones

	lanes                []*laneState
	bodies               bodyCache
	ingests              uint64                            // ingest commands built so far
	provisional          map[waitlistKey][]*provisionalJob // due jobs whose ingest is in flight, in start order
	placing              map[dispatchKey]*placement        // placements in flight
	placingByQueue       map[string]int                    // placements in flight by queue
	pools                map[poolKey]*pool
	roundRobin           []*pool // all pools
	nextPool             int     // index in roundRobin of the pool that is served first
	nodes                map[string]*node
	dispatches           map[dispatchKey]*dispatch
	orphansCheckedAt     time.Time // when sweepOrphans last ran
	renewedAt            time.Time // when the lease's renewal was last queued
	consistencyCheckedAt time.Time // when a consistency check was last queued; zero: not yet
	awayRunners          []string  // a text for each runner that jobs wait for and no live member has
	crons                cronState
}

// pendingEntry collects the commands of the next Raft entry.
type pendingEntry struct {
	ingests     []*pendingIngest
	outcomes    []*pendingOutcome
	commands    []pendingCommand
	placements  []*placement
	published   *ledger.MarkPublished // nil: nothing was published since the last entry
	publishedAt time.Time             // when published was set
	urgent      time.Time             // since when urgent commands wait; zero: none do
	lazy        time.Time             // since when other commands wait; zero: none do
	size        int                   // estimated, in bytes
}

// pendingCommand is a command that waits for its entry, and the function called
// with its result and the index of its entry; done may be nil.
type pendingCommand struct {
	command ledger.Command
	done    func(ledger.Result, uint64)
}

// submission is an entry in flight and the functions called with its results.
type submission struct {
	wait func(context.Context) (Commit, error)
	done []func(ledger.Result, uint64)
}

func newTenure(s *Scheduler, clock stampClock, trusted time.Time) *tenure {
	t := &tenure{
		sched: s, cfg: s.cfg, clock: clock, startedAt: time.Now(), members: s.cfg.Members,
		inbox: make(chan func(), inboxSize), replyWake: make(chan struct{}, 1), done: make(chan struct{}), streamsReady: make(chan struct{}),
		submitted: make(chan submission, maxInFlight), applied: make(chan struct{}, 1), replayWake: make(chan struct{}, 1),
		timer: time.NewTimer(time.Hour), bodies: newBodyCache(),
		provisional: map[waitlistKey][]*provisionalJob{}, placing: map[dispatchKey]*placement{}, placingByQueue: map[string]int{},
		pools: map[poolKey]*pool{}, nodes: map[string]*node{}, dispatches: map[dispatchKey]*dispatch{},
		crons: newCronState(), needsOperator: map[string]bool{}, blockers: map[string]*blocker{},
	}
	t.trustedUntil.Store(&trusted)
	t.renewedAt = t.startedAt
	return t
}

func (t *tenure) ledger() Ledger { return t.sched.ledger }

// post has the goroutine of run call f. It blocks while the inbox is full and drops
// f if the loop has ended. The loop itself must not call it.
func (t *tenure) post(f func()) {
	select {
	case t.inbox <- f:
	case <-t.done:
	}
}

// postReply is post for replies to requests of the loop. It never blocks, because
// the loop itself may deliver a reply. The number of replies is bounded by that of
// the requests in flight.
func (t *tenure) postReply(f func()) {
	t.replyMu.Lock()
	t.replies = append(t.replies, f)
	t.replyMu.Unlock()
	signal(t.replyWake)
}

// run is the event loop: it handles what was posted, then decides whether to submit
// an entry. It returns when ctx ends or the tenure must end; later posts are
// dropped.
func (t *tenure) run(ctx context.Context) error {
	defer close(t.done)
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	defer t.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-t.inbox:
			f()
			t.drain()
		case <-t.replyWake:
			t.drainReplies()
		case <-sweep.C:
			t.sweep()
		case <-t.timer.C:
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
}

// drainReplies handles all posted replies.
func (t *tenure) drainReplies() {
	t.replyMu.Lock()
	posts := t.replies
	t.replies = nil
	t.replyMu.Unlock()
	for _, f := range posts {
		f()
	}
}

// drain handles up to drainBatch posts without blocking.
func (t *tenure) drain() {
	for range drainBatch {
		select {
		case f := <-t.inbox:
			f()
		default:
			return
		}
	}
}

// flush submits entries while one is due, then sets the timer for the next. It
// returns the reason if the tenure must end.
func (t *tenure) flush() error {
	for t.ended == nil && t.inFlight < maxInFlight {
		wait := t.waitFor(time.Now())
		if wait == 0 {
			sent, err := t.submitEntry()
			if err != nil {
				return err
			}
			if sent {
				continue
			}
			wait = max(t.waitFor(time.Now()), time.Millisecond)
		}
		t.timer.Reset(wait)
		return nil
	}
	return t.ended
}

// idleWait is how long the loop sleeps when nothing is pending.
const idleWait = time.Hour

// waitFor places waiting jobs and returns how long the loop may sleep before it has
// to act again; 0 if an entry is due.
func (t *tenure) waitFor(now time.Time) time.Duration {
	if t.placeDirty {
		t.ledger().View(t.place)
		t.placeDirty = false
	}
	untilDue := idleWait
	if !t.nextDue.IsZero() {
		if untilDue = t.nextDue.Sub(t.clock.now()); untilDue <= 0 {
			t.markUrgent()
		}
	}
	untilCron := t.checkCrons()
	return max(0, min(untilDue, untilCron, t.closeGaps(now), t.waitForEntry(now)))
}

// waitForEntry returns how long the pending entry may wait; 0 or less if it is due.
func (t *tenure) waitForEntry(now time.Time) time.Duration {
	e := &t.entry
	urgent := !e.urgent.IsZero()
	switch {
	case !urgent && e.lazy.IsZero() && e.published == nil:
		return idleWait
	case !urgent && e.lazy.IsZero():
		return trimMaxWait - now.Sub(e.publishedAt)
	case e.size >= fullEntrySize || urgent && t.inFlight == 0:
		return 0
	case urgent:
		return entryMaxWait - now.Sub(e.urgent)
	}
	return settleMaxWait - now.Sub(e.lazy)
}

// entryBuilder is an entry that is being built: its commands and, for each, the
// function called with its result.
type entryBuilder struct {
	at       time.Time
	commands []ledger.Command
	done     []func(ledger.Result, uint64)
}

func (b *entryBuilder) add(c ledger.Command, done func(ledger.Result, uint64)) {
	b.commands = append(b.commands, c)
	b.done = append(b.done, done)
}

// submitEntry builds the next entry and submits it. It reports false if the entry
// would be empty.
func (t *tenure) submitEntry() (bool, error) {
	b := &entryBuilder{at: t.clock.now()}
	t.ledger().View(func(l *ledger.Ledger) {
		t.addIngests(l, b)
		t.addOutcomes(l, b)
		t.addCommands(b)
		t.place(l)
		t.addPlacements(b)
	})
	if t.entry.published != nil {
		b.add(t.entry.published, nil)
	}
	if len(b.commands) == 0 && !t.nextDue.IsZero() && !t.nextDue.After(b.at) {
		b.add(&ledger.Observe{}, nil) // an empty command: the entry's stamp promotes the due jobs
	}
	t.entry = pendingEntry{ingests: t.entry.ingests, outcomes: t.entry.outcomes, commands: t.entry.commands}
	t.resetSize()
	if len(b.commands) == 0 {
		return false, nil
	}
	t.nextDue = time.Time{} // set again once this entry is applied
	wait, err := t.ledger().Submit(Proposal{At: b.at, Epoch: t.epoch, Commands: b.commands})
	if err != nil {
		return false, err
	}
	t.inFlight++
	t.submitted <- submission{wait, b.done}
	return true, nil
}

// addCommands moves pending commands into the entry, up to about maxCommandSize.
func (t *tenure) addCommands(b *entryBuilder) {
	size, n := 0, 0
	for n < len(t.entry.commands) && size < maxCommandSize {
		c := t.entry.commands[n]
		size += sizeOf(c.command)
		b.add(c.command, c.done)
		n++
	}
	t.entry.commands = t.entry.commands[n:]
}

// sizeOf estimates the size of a command in an entry, in bytes. Its texts are
// bounded by [ledger.Check].
func sizeOf(c ledger.Command) int {
	return commandSize + ledger.TextBytes(c)
}

// resetSize adds up the sizes of the commands that did not fit into the last entry,
// and marks them urgent.
func (t *tenure) resetSize() {
	e := &t.entry
	for _, in := range e.ingests {
		for i := range in.records {
			e.size += in.records[i].size()
		}
	}
	for _, o := range e.outcomes {
		e.size += o.size()
	}
	for _, c := range e.commands {
		e.size += sizeOf(c.command)
	}
	if len(e.outcomes) > 0 || len(e.commands) > 0 || len(e.ingests) > 0 && t.blocked == "" {
		t.markUrgent()
	}
}

// submitCommand adds a command to the next entry, which is urgent from then on. It
// calls done, which may be nil, with the result.
func (t *tenure) submitCommand(c ledger.Command, done func(ledger.Result, uint64)) {
	if t.submitLazily(c, done) {
		t.markUrgent()
	}
}

// submitLazily is submitCommand without urgency: the command may wait for others to
// share its entry. If the ledger would refuse the command, submitLazily calls done
// at once and reports false.
func (t *tenure) submitLazily(c ledger.Command, done func(ledger.Result, uint64)) bool {
	if err := ledger.Check(c); err != nil {
		if done != nil {
			done(ledger.Result{Err: err}, 0)
		}
		return false
	}
	t.entry.commands = append(t.entry.commands, pendingCommand{c, done})
	t.entry.size += sizeOf(c)
	t.markLazy()
	return true
}

// markUrgent notes that the next entry should be submitted as soon as possible.
func (t *tenure) markUrgent() {
	if t.entry.urgent.IsZero() {
		t.entry.urgent = time.Now()
	}
}

// markLazy notes that the next entry holds commands that may wait for others.
func (t *tenure) markLazy() {
	if t.entry.lazy.IsZero() {
		t.entry.lazy = time.Now()
	}
}

// awaitCommits waits for the entries in flight, in order, and posts their results
// to the loop. It returns an error if an entry cannot be committed.
func (t *tenure) awaitCommits(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-t.submitted:
			c, err := s.wait(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			t.post(func() { t.committed(s, c) })
		}
	}
}

// committed calls the functions that wait for the results of an applied entry, and
// updates what the tenure derives from the ledger. It ends the tenure if the ledger
// has refused a command because of its epoch.
func (t *tenure) committed(s submission, c Commit) {
	t.inFlight--
	for i := range c.Results {
		if errors.Is(c.Results[i].Err, ledger.ErrStaleEpoch) {
			t.ended = c.Results[i].Err
			return
		}
	}
	for i, done := range s.done {
		if done != nil {
			done(c.Results[i], c.Index)
		}
	}
	t.placeDirty = true
	t.crons.dirty = t.crons.dirty || len(t.crons.published) > 0 // a tick's job may have been ingested
	t.ledger().View(func(l *ledger.Ledger) {
		t.checkBlocked(l)
		t.updateMembership(l)
		if t.inFlight > 0 {
			return
		}
		var ok bool
		if t.nextDue, ok = l.NextDue(); !ok {
			t.nextDue = time.Time{}
		}
	})
	if len(t.entry.ingests) > 0 {
		t.markUrgent() // ingests that a full outbox held back may continue
	}
	signal(t.applied)
}
