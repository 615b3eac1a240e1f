package ledger

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Stamp describes a log entry: its place in the log, and its proposer's time
// and epoch.
type Stamp struct {
	Index, Term uint64
	At          time.Time // see [Clock.Now]
	Offsets               // of the other clocks
	Epoch       uint64
}

// Result is the answer to one command.
type Result struct {
	Err         error      // why it was refused; nothing has changed, except after ErrQueueRemoving
	Event       *Event     // contract commands: the event that answers it
	EventNumber uint64     // of Event
	Ingested    []Ingested // Ingest: one per job
	Placed      []bool     // Place: one per placement
	Settled     []Settled  // Settle: one per settlement
	State       job.State
	Operation   *Operation // StartOperation, ChangeOperation, StepOperation: the operation after the command
	Recalled    []job.ID   // StepOperation: the active jobs that it has cancelled
	Queue       *QueueView // AddQueue, ChangeQueue, PauseQueue: the queue after the command
}

// Errors that refuse a command.
var (
	ErrStaleEpoch     = errors.New("the epoch is not the current authority's")
	ErrCursorMismatch = errors.New("the lane's cursor is at another sequence")
	ErrLaneMismatch   = errors.New("the lane's stream is not the one that the ledger knows")
	ErrUnknownKind    = errors.New("unknown command")
)

// Limits of the ledger, and how long it keeps ids.
const (
	maxPromotions   = 1000 // delayed jobs made waiting, per entry
	maxPruned       = 2000 // finished jobs removed per entry, and likewise ids, decisions and refusals
	MaxQueues       = 10_000
	MaxQueueRunners = 100              // different runners that the unfinished jobs of one queue may name
	MaxRunnerLines  = 20_000           // the same, added up over all queues
	MaxExternal     = 100_000          // unfinished external dispatches
	DedupeHorizon   = 10 * time.Minute // for which the id of a forgotten job is kept at least
	DedupeAge       = 24 * time.Hour   // for which it is kept if there are not more than DedupeCount
	DedupeCount     = 1_000_000
	MaxDedupeIDs    = 20_000_000  // ids of forgotten jobs, see [ForgottenIDs]; beyond it, no job is ingested until some are forgotten
	MaxJobs         = 100_000_000 // beyond it, no job is ingested until some are forgotten; [idIndex] finds a third more
)

// Ledger is the replicated state. It is not safe for concurrent use: package
// consensus guards it with a lock, and long reads use a [Ledger.Copy].
type Ledger struct {
	ingestion
	crons
	schemas
	operations

	authority  authority
	secret     []byte
	streams    uint8 // generation of the cluster's streams; 0: they have not been created
	replay     replay
	membership Membership
	external   external
	stalls     stalls
	hold       hold
	restoring  *restoreState // immutable: each part replaces it
}

// entry is the last applied log entry.
type entry struct {
	index, term uint64
	epoch       uint64 // its proposer's
	clocks
	fenceBase uint64 // difference between fences and the indexes of their entries
}

func empty() *Ledger {
	d := dispatches{jobs: newJobs(), guards: newGuards()}
	return &Ledger{
		ingestion: ingestion{dispatches: d, decisions: newDecisions(), refused: newRefusals()},
		external:  newExternal(), stalls: newStalls(), crons: newCrons(),
	}
}

// New returns the ledger before the first log entry.
func New() *Ledger {
	l := empty()
	l.queues.add(job.SystemQueue, job.RecordID(job.SystemQueue, job.Position{}, time.Unix(0, 0)), job.DefaultQueueConfig)
	return l
}

// Apply applies one log entry: its commands in order, with one result each. A
// refused command does not affect the others.
func (l *Ledger) Apply(at Stamp, cmds []Command) []Result {
	l.index, l.term, l.epoch = at.Index, at.Term, at.Epoch
	l.advance(at, cmds)
	l.outbox.begin(at.Index, l.now, cmds)
	if l.changes != nil {
		l.changes.begin(at.Index)
	}
	if l.transitions != nil {
		*l.transitions = (*l.transitions)[:0]
	}
	l.expireJobs()
	l.promote()
	l.jobs.limits.wake()
	l.guards.expire(l.elapsed)
	results := make([]Result, len(cmds))
	for i, c := range cmds {
		results[i] = l.apply(at, c)
	}
	l.prune()
	l.emitForgotten()
	l.external.prune(l.now, l.finished.classes[retryableClass].limits)
	l.pruneOperations()
	l.forget()
	l.outbox.seal()
	return results
}

// apply applies one command of the entry at. It refuses a command whose proposer
// does not have the current epoch, except an acquisition of the authority.
func (l *Ledger) apply(at Stamp, c Command) Result {
	if lead, ok := c.(*Lead); ok {
		return lead.apply(l)
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
	return c.apply(l)
}

// Index returns the index of the last applied entry.
func (e *entry) Index() uint64 { return e.index }

// FenceBase returns the difference between fences and the indexes of their
// entries. It changes only at a restore.
func (e *entry) FenceBase() uint64 { return e.fenceBase }

// fence returns the fence of dispatches that the entry places. It increases
// with every entry, also across a restore.
func (e *entry) fence() uint64 { return e.fenceBase + e.index }

// Secret returns the key that lease tokens are signed with, or nil before the
// cluster is bootstrapped.
func (l *Ledger) Secret() []byte { return l.secret }

// StreamsCreated reports whether the cluster's streams have been created, so
// that a missing stream means a loss of data.
func (l *Ledger) StreamsCreated() bool { return l.streams > 0 }

// Streams returns the generation of the streams that have been created, see
// [StreamGeneration]; 0 if there are none.
func (l *Ledger) Streams() uint8 { return l.streams }

// Copy returns a copy of the ledger that may be read while the original
// changes. It shares trees, and pages of tables and chunks of lists, with the original; its cost
// grows with the number of queues that changed since the last copy, and of their waitlists, by 8
// bytes for each page of 256 jobs, and for each chunk of the lists of those queues.
// A copy is for encoding, listing, counting and publishing. It must not be
// applied to or copied, and it has no indexes by id:
// methods that look up a single job ([Ledger.Find], [Ledger.Known],
// [Ledger.Dispatch], [Ledger.Decision]), and [Ledger.QueuesWaiting] and
// [Ledger.Ticks], must be called on the original.
//
// Copy modifies the original's trees: it needs the same exclusion as a write.
func (l *Ledger) Copy() *Ledger {
	c := *l
	c.lanes = slices.Clone(l.lanes)
	c.replay = l.replay.copy()
	c.jobs = l.jobs.copy()
	c.external = l.external.copy()
	c.stalls = l.stalls.copy()
	c.crons = l.crons.copy()
	c.guards, c.decisions, c.refused = l.guards.copy(), l.decisions.copy(), l.refused.copy()
	return &c
}
