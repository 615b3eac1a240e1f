package ledger

import (
	"time"

	"yardmaster/job"
)

// Kind numbers the commands in the log. Numbers are never reused.
type Kind uint8

// The commands. The first block is the yard's own; the second is the runtime
// contract's.
const (
	KindLead Kind = iota + 1
	KindRenew
	KindFound
	KindFold
	KindPlace
	KindSettle
	KindTold
	KindAddQueue
	KindRemoveQueue
	KindPauseQueue
	KindCancelJob
	KindRemoveJob
	KindRetryJob
	KindMoveDispatch
	KindObserve

	KindAcquireAuthority Kind = iota + 50
	KindRenewAuthority
	KindQueueDispatch
	KindMarkNotified
	KindMarkDelivered
	KindMarkFailed
	KindRequestReplay
	KindCaptureSnapshot
)

// KindNoteWorkers came later than the contract's, and 16 to 19 are spoken for.
const KindNoteWorkers Kind = 20

// What is said of cron entries, and of a replay.
const (
	KindSetCron Kind = iota + 24
	KindRemoveCron
	KindPauseCron
	KindTickCrons

	KindReread // how far a replay has come

	KindSetMembers // who belongs to the yard
	KindChangeMembers
	KindStepMember
)

// What is said of backups.
const (
	KindHold      Kind = iota + 32 // nothing is reclaimed while one is made
	KindBringBack                  // the ledger out of one
)

// Command is one atomic change: it takes effect whole or not at all.
type Command interface{ Kind() Kind }

// New makes an empty command to decode into; ok is false for an unknown kind.
func NewCommand(k Kind) (c Command, ok bool) {
	make, ok := commands[k]
	if !ok {
		return nil, false
	}
	return make(), true
}

var commands = map[Kind]func() Command{
	KindLead:             func() Command { return new(Lead) },
	KindRenew:            func() Command { return new(Renew) },
	KindFound:            func() Command { return new(Found) },
	KindFold:             func() Command { return new(Fold) },
	KindPlace:            func() Command { return new(Place) },
	KindSettle:           func() Command { return new(Settle) },
	KindTold:             func() Command { return new(Told) },
	KindAddQueue:         func() Command { return new(AddQueue) },
	KindRemoveQueue:      func() Command { return new(RemoveQueue) },
	KindPauseQueue:       func() Command { return new(PauseQueue) },
	KindCancelJob:        func() Command { return new(CancelJob) },
	KindRemoveJob:        func() Command { return new(RemoveJob) },
	KindRetryJob:         func() Command { return new(RetryJob) },
	KindMoveDispatch:     func() Command { return new(MoveDispatch) },
	KindObserve:          func() Command { return new(Observe) },
	KindNoteWorkers:      func() Command { return new(NoteWorkers) },
	KindSetCron:          func() Command { return new(SetCron) },
	KindRemoveCron:       func() Command { return new(RemoveCron) },
	KindPauseCron:        func() Command { return new(PauseCron) },
	KindTickCrons:        func() Command { return new(TickCrons) },
	KindReread:           func() Command { return new(Reread) },
	KindSetMembers:       func() Command { return new(SetMembers) },
	KindChangeMembers:    func() Command { return new(ChangeMembers) },
	KindStepMember:       func() Command { return new(StepMember) },
	KindProve:            func() Command { return new(Prove) },
	KindHold:             func() Command { return new(Hold) },
	KindBringBack:        func() Command { return new(BringBack) },
	KindAcquireAuthority: func() Command { return new(AcquireAuthority) },
	KindRenewAuthority:   func() Command { return new(RenewAuthority) },
	KindQueueDispatch:    func() Command { return new(QueueDispatch) },
	KindMarkNotified:     func() Command { return new(MarkNotified) },
	KindMarkDelivered:    func() Command { return new(MarkDelivered) },
	KindMarkFailed:       func() Command { return new(MarkFailed) },
	KindRequestReplay:    func() Command { return new(RequestReplay) },
	KindCaptureSnapshot:  func() Command { return new(CaptureSnapshot) },
}

// Lead gives the authority to the Raft leader: it succeeds in a term later
// than the present lease's, after that lease ran out, or for its owner.
type Lead struct {
	Owner string
	Until time.Time
}

// Renew extends the present authority's lease.
type Renew struct{ Until time.Time }

// Found lays down what a yard has from its first tenure on: the secret that
// lease tokens are signed with and the identities of the job lanes. A second
// Found changes neither; Made records that the streams exist, so that one
// found missing later is known to be lost.
type Found struct {
	Secret []byte
	Lanes  []string
	Made   bool
}

// Fold takes a lane's records From (exclusive) To (inclusive) into the ledger,
// if the lane has this identity and its cursor stands at From.
type Fold struct {
	Lane         uint8
	Identity     string
	From, To     uint64
	Jobs         []job.Job
	Rejected     []Rejection
	CreateQueues bool // a job of an unknown queue creates it; else it is rejected
}

// Rejection is a record that cannot be a job.
type Rejection struct {
	ID       job.ID
	Queue    string
	Seq      uint64
	Accepted time.Time
	Reason   string
}

// Place notifies dispatches: each placement that no longer holds is left out.
type Place struct{ Placements []Placement }

// Placement names who is to run a waiting job's pending dispatch.
type Placement struct {
	Job         job.ID
	N           uint32
	Node        string
	Incarnation uint64
	Channel     string
}

// Settle ends dispatches, each with the policy's verdict.
type Settle struct{ Ends []End }

// End is how one dispatch ended and what becomes of its job.
type End struct {
	Job    job.ID
	N      uint32
	Next   job.Next
	At     time.Time // Again, Back: when the job is due; zero: at once
	Loss   bool      // Back: counts against the job's losses
	Reason string    // unless Done
	Result job.Value
	Blob   *job.Blob
	Fault  *job.Fault

	// Who has lost the dispatch, if the end says no more than that: it counts
	// only while the dispatch is there. Node "" speaks for the job itself, and
	// may come from anywhere.
	Node        string
	Incarnation uint64
}

// Told trims the outbox: everything up to these numbers is published.
// Seq is where a message with results lies in its stream; 0 if none was told.
type Told struct {
	Events, Results, Dead uint64
	Messages              []ResultMessage
}

// ResultMessage says that the results from number First on lie in message Seq
// of the result stream, up to the next message's First.
type ResultMessage struct{ First, Seq uint64 }

// AddQueue makes a queue.
type AddQueue struct {
	ID     job.ID
	Name   string
	Config job.QueueConfig
}

// RemoveQueue removes a queue without unfinished jobs, and its finished ones.
type RemoveQueue struct{ Name string }

// PauseQueue pauses a queue or resumes it; Idle: only if none of its jobs is
// active.
type PauseQueue struct {
	Name   string
	Paused bool
	Idle   bool
}

// CancelJob ends a waiting or delayed job, and marks an active one to be
// recalled. Type is the fault's; "" stands for a caller's cancellation.
// QueueGone: the job goes because its queue does, which its worker is told.
type CancelJob struct {
	Job       job.ID
	Reason    string
	Type      string
	QueueGone bool
}

// RemoveJob forgets a job that nobody runs.
type RemoveJob struct{ Job job.ID }

// RetryJob makes a failed job waiting again, with all its attempts unless Keep
// says that those it has had go on counting. N is the dispatch whose failure
// the caller speaks of: after a later one it is refused; 0 means the last.
type RetryJob struct {
	Job  job.ID
	N    uint32
	Keep bool
}

// MoveDispatch moves a running dispatch to the node its worker came back to.
type MoveDispatch struct {
	Job         job.ID
	N           uint32
	Node        string
	Incarnation uint64
	Channel     string
}

// Observe records observations: events that change no state.
type Observe struct{ Observations []Observation }

// Observation is one of the contract's run events. Subject is its owner, Detail
// its second field.
type Observation struct {
	Event   EventKind
	Subject string
	Detail  string
}

// NoteWorkers tells which workers of a node have stalled and recovered. The
// node numbers its notes from 1 in each of its lives; what was heard before is
// left out.
type NoteWorkers struct {
	Node        string
	Incarnation uint64
	First       uint64 // number of Notes[0]
	Notes       []job.Note
}

// SetCron makes a cron entry, or with Replace gives one a new meaning. Next is
// its next tick; the authority fills it in.
type SetCron struct {
	Cron    Cron
	Replace bool
	Next    time.Time
}

// RemoveCron removes a cron entry; one of the configuration's only if Declared
// says that the configuration asks for it.
type RemoveCron struct {
	Name     string
	Declared bool
}

// PauseCron pauses a cron entry or resumes it, with Next as its next tick,
// which the authority fills in.
type PauseCron struct {
	Name   string
	Paused bool
	Next   time.Time
}

// TickCrons says that cron entries' ticks have come.
type TickCrons struct{ Ticks []CronTick }

// CronTick is the tick At of an entry as it was at Rev, and the one after it.
type CronTick struct {
	Name     string
	Rev      uint64
	At, Next time.Time // Next is zero if there is none
	Missed   uint32    // ticks from At on, before Next, that make no job
	Fire     bool      // At makes a job
}

func (*Lead) Kind() Kind         { return KindLead }
func (*Renew) Kind() Kind        { return KindRenew }
func (*Found) Kind() Kind        { return KindFound }
func (*Fold) Kind() Kind         { return KindFold }
func (*Place) Kind() Kind        { return KindPlace }
func (*Settle) Kind() Kind       { return KindSettle }
func (*Told) Kind() Kind         { return KindTold }
func (*AddQueue) Kind() Kind     { return KindAddQueue }
func (*RemoveQueue) Kind() Kind  { return KindRemoveQueue }
func (*PauseQueue) Kind() Kind   { return KindPauseQueue }
func (*CancelJob) Kind() Kind    { return KindCancelJob }
func (*RemoveJob) Kind() Kind    { return KindRemoveJob }
func (*RetryJob) Kind() Kind     { return KindRetryJob }
func (*MoveDispatch) Kind() Kind { return KindMoveDispatch }
func (*Observe) Kind() Kind      { return KindObserve }
func (*NoteWorkers) Kind() Kind  { return KindNoteWorkers }
func (*SetCron) Kind() Kind      { return KindSetCron }
func (*RemoveCron) Kind() Kind   { return KindRemoveCron }
func (*PauseCron) Kind() Kind    { return KindPauseCron }
func (*TickCrons) Kind() Kind    { return KindTickCrons }
