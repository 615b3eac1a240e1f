package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Stamp describes a log entry: its place in the log, and its proposer's time
// and epoch.
type Stamp struct {
	Index, Term uint64
	At          time.Time
	Epoch       uint64
}

// Result is the answer to one command.
type Result struct {
	Err      error      // why it was refused; nothing has changed
	Event    *Event     // contract commands: the event that answers it
	Ingested []Ingested // Ingest: one per job
	Placed   []bool     // Place: one per placement
	Settled  []Settled  // Settle: one per settlement
	State    job.State
	Queue    *QueueView // AddQueue, PauseQueue: the queue after the command
}

// Errors that refuse a command.
var (
	ErrStaleEpoch     = errors.New("the epoch is not the current authority's")
	ErrCursorMismatch = errors.New("the lane's cursor is at another sequence")
	ErrLaneMismatch   = errors.New("the lane's stream is not the one that the ledger knows")
	ErrUnknownKind    = errors.New("unknown command")
)

// Limits of the ledger, and how long it keeps what has ended.
const (
	maxPromotions     = 1000 // delayed jobs made waiting, per entry
	maxPruned         = 2000 // finished jobs removed per entry, and likewise ids and decisions
	MaxQueues         = 10_000
	MaxQueueRunners   = 100     // different runners that the unfinished jobs of one queue may name
	MaxRunnerLines    = 20_000  // the same, added up over all queues
	MaxExternal       = 100_000 // unfinished external dispatches
	FinishedRetention = 24 * time.Hour
	MaxFinished       = 200_000
	DedupeHorizon     = 10 * time.Minute
	MaxDedupeIDs      = 10_000_000
)

// Ledger is the replicated state. It is not safe for concurrent use: package
// consensus guards it with a lock, and long reads use a [Ledger.Copy].
type Ledger struct {
	index uint64
	term  uint64
	now   int64 // Unix nanoseconds; never decreases

	authority      authority
	secret         []byte
	lanes          []lane
	streamsCreated bool   // the cluster's streams have been created
	lastIngested   job.ID // id of the last ingested record
	replay         replay
	membership     Membership

	queues   queues
	jobs     jobs
	external external
	stalls   stalls
	crons    crons
	counts   Counts
	outbox   outbox

	guards    guards
	decisions decisions
	stale     uint64 // number of outcomes for dispatches that were not current

	hold      hold
	restoring *restoreState // immutable: each part replaces it
	fenceBase uint64        // difference between fences and the indexes of their entries
}

// Counts is the contract's backlog. Pending and Notified are current numbers,
// Delivered and Failed are cumulative.
type Counts struct{ Pending, Notified, Delivered, Failed uint64 }

func empty() *Ledger {
	return &Ledger{
		queues: newQueues(), jobs: newJobs(), external: newExternal(), stalls: newStalls(),
		guards: newGuards(), decisions: newDecisions(), crons: newCrons(),
	}
}

// New returns the ledger before the first log entry.
func New() *Ledger {
	l := empty()
	l.queues.add(job.SystemQueue, job.RecordID(job.SystemQueue, 0, time.Unix(0, 0)), job.DefaultQueueConfig)
	return l
}

// Apply applies one log entry: its commands in order, with one result each. A
// refused command does not affect the others.
func (l *Ledger) Apply(at Stamp, cmds []Command) []Result {
	l.index, l.term = at.Index, at.Term
	l.now = max(l.now, at.At.UnixNano())
	l.outbox.begin(at.Index, l.now, cmds)
	l.promote()
	l.guards.expire(l.now)
	results := make([]Result, len(cmds))
	for i, c := range cmds {
		results[i] = l.apply(at, c)
	}
	l.prune()
	l.outbox.seal()
	return results
}

func (l *Ledger) apply(at Stamp, c Command) Result {
	if lead, ok := c.(*Lead); ok {
		return l.lead(at, lead)
	}
	if at.Epoch != l.authority.epoch {
		return Result{Err: fmt.Errorf("epoch %d, current %d: %w", at.Epoch, l.authority.epoch, ErrStaleEpoch)}
	}
	if err := Check(c); err != nil {
		return Result{Err: err}
	}
	if l.restoring != nil && !allowedDuringRestore(c) {
		return Result{Err: ErrRestoring}
	}
	switch c := c.(type) {
	case *Renew:
		return l.renew(c)
	case *Bootstrap:
		return l.bootstrap(c)
	case *Ingest:
		return l.ingest(c)
	case *Place:
		return l.place(c)
	case *Settle:
		return l.settle(c)
	case *MarkPublished:
		return l.markPublished(c)
	case *AddQueue:
		return l.addQueue(c)
	case *RemoveQueue:
		return l.removeQueue(c)
	case *PauseQueue:
		return l.pauseQueue(c)
	case *CancelJob:
		return l.cancel(c)
	case *RemoveJob:
		return l.remove(c)
	case *RetryJob:
		return l.retry(c)
	case *MoveDispatch:
		return l.move(c)
	case *Observe:
		return l.observe(c)
	case *RecordWorkerEvents:
		return l.recordWorkerEvents(c)
	case *SetCron:
		return l.setCron(c)
	case *RemoveCron:
		return l.removeCron(c)
	case *PauseCron:
		return l.pauseCron(c)
	case *TickCrons:
		return l.tickCrons(c)
	case *AdvanceReplay:
		return l.advanceReplay(c)
	case *SetMembers:
		return l.setMembers(c)
	case *ChangeMembers:
		return l.changeMembers(c)
	case *AdvanceMember:
		return l.stepMember(c)
	case *CheckConsistency:
		return Result{}
	case *Hold:
		return l.applyHold(c)
	case *Restore:
		return l.applyRestore(c)
	}
	return l.applyContract(at, c)
}

// Index returns the index of the last applied entry.
func (l *Ledger) Index() uint64 { return l.index }

// Now returns the ledger's time: the latest stamp.
func (l *Ledger) Now() time.Time { return time.Unix(0, l.now).UTC() }

// Secret returns the key that lease tokens are signed with, or nil before the
// cluster is bootstrapped.
func (l *Ledger) Secret() []byte { return l.secret }

// Counts returns the backlog.
func (l *Ledger) Counts() Counts { return l.counts }

// Stale returns how many outcomes were for a dispatch that was not current.
func (l *Ledger) Stale() uint64 { return l.stale }

// Copy returns a copy of the ledger that may be read while the original
// changes. It shares all records with the original; its cost grows only with
// the number of queues and waitlists. A copy is for encoding, listing, counting
// and publishing. It must not be applied to, and it has no indexes by id:
// methods that look up a single job ([Ledger.Find], [Ledger.Known],
// [Ledger.Dispatch], [Ledger.Decision]), and [Ledger.QueuesWaiting] and
// [Ledger.Ticks], must be called on the original.
//
// Copy modifies the original's trees: it needs the same exclusion as a write.
func (l *Ledger) Copy() *Ledger {
	c := *l
	c.lanes = append([]lane(nil), l.lanes...)
	c.replay = l.replay.copy()
	c.queues = l.queues.copy()
	c.jobs = l.jobs.copy()
	c.external = l.external.copy()
	c.stalls = l.stalls.copy()
	c.crons = l.crons.copy()
	c.guards, c.decisions = l.guards.copy(), l.decisions.copy()
	return &c
}
