package ledger

import (
	"errors"
	"fmt"
	"time"

	"yardmaster/job"
)

// Stamp comes with every log entry: its place in the log, and the proposer's
// time and epoch.
type Stamp struct {
	Index, Term uint64
	At          time.Time
	Epoch       uint64
}

// Result answers one command.
type Result struct {
	Err    error    // refused: nothing changed
	Event  *Event   // contract commands: the event that answers it
	Folded []Folded // Fold: one per job
	Placed []bool   // Place: one per placement
	Ended  []Ended  // Settle: one per end
	State  job.State
	Queue  *QueueView // AddQueue, PauseQueue: as the command leaves it
}

// Errors that refuse a command.
var (
	ErrStaleEpoch   = errors.New("the epoch is not the present authority's")
	ErrCursor       = errors.New("the lane's cursor stands elsewhere")
	ErrLaneIdentity = errors.New("the lane is another stream than the ledger knows")
	ErrUnknownKind  = errors.New("unknown command")
)

// Limits of the ledger, and how long it remembers.
const (
	maxPromotions   = 1000 // delayed jobs made waiting, per entry
	maxForgotten    = 2000 // finished jobs and ids forgotten, per entry
	MaxQueues       = 10_000
	MaxOwn          = 100_000 // unfinished own dispatches
	FinishedKeep    = 24 * time.Hour
	FinishedKeepMax = 200_000
	DedupeHorizon   = 10 * time.Minute
	DedupeMax       = 10_000_000
)

// Ledger is the state. It is not safe for concurrent use: package consensus
// guards it, and readers that take long work on a [Ledger.Copy].
type Ledger struct {
	index uint64
	term  uint64
	now   int64 // unix nanoseconds, never goes back

	authority  authority
	secret     []byte
	lanes      []lane
	made       bool   // the yard's streams have existed
	lastFolded job.ID // id of the last folded record
	replay     replay
	roll       Roll

	queues queues
	jobs   jobs
	own    own
	stalls stalls
	crons  crons
	counts Counts
	outbox outbox

	guards  guards
	rulings rulings
	stale   uint64 // outcomes of dispatches that were no longer current

	held      hold
	bringing  *bringing // immutable: a part replaces it
	fenceBase uint64    // what fences are above their entries' indexes
}

// Counts are the contract's backlog: pending and notified are present,
// delivered and failed cumulative.
type Counts struct{ Pending, Notified, Delivered, Failed uint64 }

func empty() *Ledger {
	return &Ledger{
		queues: newQueues(), jobs: newJobs(), own: newOwn(), stalls: newStalls(),
		guards: newGuards(), rulings: newRulings(), crons: newCrons(),
	}
}

// New is the ledger before the first entry.
func New() *Ledger {
	l := empty()
	l.queues.add(job.SystemQueue, job.RecordID(job.SystemQueue, 0, time.Unix(0, 0)), job.DefaultQueueConfig)
	return l
}

// Apply applies one log entry: its commands in order, one result each. It
// never fails as a whole.
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
	l.forget()
	l.outbox.seal()
	return results
}

func (l *Ledger) apply(at Stamp, c Command) Result {
	if lead, ok := c.(*Lead); ok {
		return l.lead(at, lead)
	}
	if at.Epoch != l.authority.epoch {
		return Result{Err: fmt.Errorf("epoch %d, present %d: %w", at.Epoch, l.authority.epoch, ErrStaleEpoch)}
	}
	if err := Check(c); err != nil {
		return Result{Err: err}
	}
	if l.bringing != nil && !besideBringing(c) {
		return Result{Err: ErrBringing}
	}
	switch c := c.(type) {
	case *Renew:
		return l.renew(c)
	case *Found:
		return l.found(c)
	case *Fold:
		return l.fold(c)
	case *Place:
		return l.place(c)
	case *Settle:
		return l.settle(c)
	case *Told:
		return l.told(c)
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
	case *NoteWorkers:
		return l.noteWorkers(c)
	case *SetCron:
		return l.setCron(c)
	case *RemoveCron:
		return l.removeCron(c)
	case *PauseCron:
		return l.pauseCron(c)
	case *TickCrons:
		return l.tickCrons(c)
	case *Reread:
		return l.reread(c)
	case *SetMembers:
		return l.setMembers(c)
	case *ChangeMembers:
		return l.changeMembers(c)
	case *StepMember:
		return l.stepMember(c)
	case *Prove:
		return Result{}
	case *Hold:
		return l.holdBack(c)
	case *BringBack:
		return l.bringBack(c)
	}
	return l.applyContract(at, c)
}

// Index is the last applied entry's.
func (l *Ledger) Index() uint64 { return l.index }

// Now is the ledger's time: the latest stamp.
func (l *Ledger) Now() time.Time { return time.Unix(0, l.now).UTC() }

// Secret is the key that lease tokens are signed with; nil before the yard is
// founded.
func (l *Ledger) Secret() []byte { return l.secret }

// Counts gives the backlog.
func (l *Ledger) Counts() Counts { return l.counts }

// Stale is how many outcomes came for a dispatch that was no longer current.
func (l *Ledger) Stale() uint64 { return l.stale }

// Copy is the ledger as it is now. It shares all records with the original,
// costs time by the number of queues only, and may be read while the original
// goes on. A copy is for encoding, listing, counting and telling: it must not
// be applied to, and what looks a single job up (Find, Known, Dispatch, Ruling) or
// what only the authority asks (BusyLines, Ticks) is answered by the original alone.
//
// Making a copy touches the original's trees: guard it as if it were a write.
func (l *Ledger) Copy() *Ledger {
	c := *l
	c.lanes = append([]lane(nil), l.lanes...)
	c.replay = l.replay.copy()
	c.queues = l.queues.copy()
	c.jobs = l.jobs.copy()
	c.own = l.own.copy()
	c.stalls = l.stalls.copy()
	c.crons = l.crons.copy()
	c.guards, c.rulings = l.guards.copy(), l.rulings.copy()
	return &c
}
