package scheduler

import (
	"context"
	"log/slog"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Parameters of group commit. The values were measured: fewer and larger writes
// give the lowest latency.
const (
	maxInFlight   = 4                      // entries
	fullEntrySize = 16 << 10               // bytes from which an entry is submitted at once
	maxEntrySize  = 256 << 10              // bytes
	entryMaxWait  = 3 * time.Millisecond   // how long urgent commands wait while an entry is in flight
	slowCommit    = 100 * time.Millisecond // commit time from which entries have fewer ingests
	settleMaxWait = 5 * time.Millisecond   // how long outcomes wait for urgent commands to share an entry with
	trimMaxWait   = 50 * time.Millisecond  // how long MarkPublished waits for another command to share an entry with
	inboxSize     = 1024
	drainBatch    = 256 // posts handled before the next decision about an entry
)

// Estimated sizes of an entry's parts in bytes, without their texts, and the shares
// of maxEntrySize that they may use. Placements are limited by maxPlacements.
const (
	recordSize       = 80
	guardsSize       = 96
	outcomeSize      = 40
	placementSize    = 60
	commandSize      = 160
	operationJobSize = 40

	maxIngestSize  = maxEntrySize / 8 * 3
	minIngestSize  = maxIngestSize / 2
	maxOutcomeSize = maxEntrySize / 4
	maxCommandSize = maxEntrySize / 8
)

// eventLoop is what the parts of a tenure share: an inbox for functions, the
// commands of the next entry, and what identifies the tenure. Any goroutine may call
// post and postReply and read the fields of the first group; the rest belongs to the
// goroutine of run.
type eventLoop struct {
	cfg       Config
	ledger    Ledger
	log       *slog.Logger
	epoch     uint64 // set before run
	startedAt time.Time
	inbox     chan func()
	replyMu   crash.Mutex
	replies   []func() // posted by postReply, guarded by replyMu
	replyWake chan struct{}
	done      chan struct{} // closed when run has returned

	clock      stampClock
	entry      pendingEntry  // the next entry
	timer      *time.Timer   // wakes the loop; flush resets it to when the loop has to act next
	placeDirty bool          // a waiting job may have become placeable
	commitTime time.Duration // moving average of the time from submitting an entry until its results are handled
}

func newEventLoop(cfg Config, l Ledger, log *slog.Logger, clock stampClock) *eventLoop {
	return &eventLoop{
		cfg: cfg, ledger: l, log: log, clock: clock, startedAt: time.Now(), timer: time.NewTimer(time.Hour),
		inbox: make(chan func(), inboxSize), replyWake: make(chan struct{}, 1), done: make(chan struct{}),
	}
}

// run calls the posted functions, and sweep every sweepInterval. After either, and when
// the timer fires, it calls flush. It returns when ctx ends, or with flush's error; it
// drops functions that are posted later.
func (e *eventLoop) run(ctx context.Context, sweep func(), flush func() error) error {
	defer close(e.done)
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	defer e.timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-e.inbox:
			f()
			e.drain()
		case <-e.replyWake:
			e.drainReplies()
		case <-ticker.C:
			sweep()
		case <-e.timer.C:
		}
		if err := flush(); err != nil {
			return err
		}
	}
}

// post has the goroutine of run call f. It blocks while the inbox is full and drops
// f if the loop has ended. The loop itself must not call it.
func (e *eventLoop) post(f func()) {
	select {
	case e.inbox <- f:
	case <-e.done:
	}
}

// postReply is post for the functions that handle answers to requests of the loop. It
// never blocks, because the answer may arrive in the loop's own goroutine. The number of
// waiting functions is bounded by that of the requests in flight.
func (e *eventLoop) postReply(f func()) {
	e.replyMu.Lock()
	e.replies = append(e.replies, f)
	e.replyMu.Unlock()
	wakeup.Send(e.replyWake)
}

// drainReplies calls the functions that postReply has added.
func (e *eventLoop) drainReplies() {
	e.replyMu.Lock()
	posts := e.replies
	e.replies = nil
	e.replyMu.Unlock()
	for _, f := range posts {
		f()
	}
}

// drain calls the functions in the inbox, at most drainBatch, without blocking.
func (e *eventLoop) drain() {
	for range drainBatch {
		select {
		case f := <-e.inbox:
			f()
		default:
			return
		}
	}
}

// pendingEntry collects the commands of the next Raft entry.
type pendingEntry struct {
	commands    []pendingCommand
	urgentSince time.Time // since when the entry should be submitted at once; zero: it need not
	lazySince   time.Time // since when commands wait that may wait for others; zero: none do
	size        int       // estimated, in bytes
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
	at   time.Time // when it was submitted
}

// noteCommit updates the commit time with that of an entry.
func (e *eventLoop) noteCommit(took time.Duration) { e.commitTime += (took - e.commitTime) / 4 }

// ingestSize returns how many bytes of ingests the next entry may have. While commits are
// slow, the authority is the bottleneck: it commits what ends and starts running jobs first,
// and new jobs wait in their lanes, where their lag slows down the acceptance of more. An
// entry always has half of the usual ingests: on an overloaded machine, smaller entries do
// not commit faster, and fewer jobs in each would keep it overloaded.
func (e *eventLoop) ingestSize() int {
	if e.commitTime <= slowCommit {
		return maxIngestSize
	}
	return max(int(maxIngestSize*int64(slowCommit)/int64(e.commitTime)), minIngestSize)
}

// entryBuilder is an entry that is being built: its commands and, for each, the
// function called with its result.
type entryBuilder struct {
	at       ledger.Clock
	commands []ledger.Command
	done     []func(ledger.Result, uint64)
}

// add appends a command. done is called with its result and the index of the entry; it
// may be nil.
func (b *entryBuilder) add(c ledger.Command, done func(ledger.Result, uint64)) {
	b.commands = append(b.commands, c)
	b.done = append(b.done, done)
}

// addCommands moves the first pending commands into b, about maxCommandSize bytes of them.
func (e *eventLoop) addCommands(b *entryBuilder) {
	size, n := 0, 0
	for n < len(e.entry.commands) && size < maxCommandSize {
		c := e.entry.commands[n]
		size += sizeOf(c.command)
		b.add(c.command, c.done)
		n++
	}
	e.entry.commands = e.entry.commands[n:]
}

// sizeOf estimates the size of a command in an entry, in bytes. Its texts are
// bounded by [ledger.Check].
func sizeOf(c ledger.Command) int {
	size := commandSize + ledger.TextBytes(c)
	if step, ok := c.(*ledger.StepOperation); ok {
		size += operationJobSize * len(step.Jobs)
	}
	return size
}

// submit adds a command to the next entry and makes the entry urgent. done, which may be
// nil, is called with the result and the index of the entry.
func (e *eventLoop) submit(c ledger.Command, done func(ledger.Result, uint64)) {
	if e.submitLazily(c, done) {
		e.markUrgent()
	}
}

// submitLazily is submit for a command that may wait for others to share its entry. If
// the command is invalid by [ledger.Check], submitLazily calls done at once, with the
// error and index 0, and reports false.
func (e *eventLoop) submitLazily(c ledger.Command, done func(ledger.Result, uint64)) bool {
	if err := ledger.Check(c); err != nil {
		if done != nil {
			done(ledger.Result{Err: err}, 0)
		}
		return false
	}
	e.entry.commands = append(e.entry.commands, pendingCommand{c, done})
	e.entry.size += sizeOf(c)
	e.markLazy()
	return true
}

// commit submits a command and blocks until its entry is applied. The error is that of
// ctx, or [ErrCommitUnknown] if the tenure ends first. The loop itself must not call it.
func (e *eventLoop) commit(ctx context.Context, c ledger.Command) (ledger.Result, error) {
	committed := make(chan ledger.Result, 1)
	e.post(func() { e.submitLazily(c, func(result ledger.Result, _ uint64) { committed <- result }) })
	select {
	case result := <-committed:
		return result, nil
	case <-e.done:
		return ledger.Result{}, ErrCommitUnknown
	case <-ctx.Done():
		return ledger.Result{}, ctx.Err()
	}
}

// markUrgent notes that the next entry should be submitted as soon as possible.
func (e *eventLoop) markUrgent() {
	if e.entry.urgentSince.IsZero() {
		e.entry.urgentSince = time.Now()
	}
}

// markLazy notes that the next entry holds commands that may wait for others.
func (e *eventLoop) markLazy() {
	if e.entry.lazySince.IsZero() {
		e.entry.lazySince = time.Now()
	}
}
