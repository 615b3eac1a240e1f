package ledger

import (
	"reflect"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Kind is the number of a command type in the log. Numbers are never reused.
type Kind uint8

// The first block of commands is proposed by the system itself, the second is
// the runtime contract's.
const (
	KindLead Kind = iota + 1
	KindRenew
	KindBootstrap
	KindIngest
	KindPlace
	KindSettle
	KindMarkPublished
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

// KindRecordWorkerEvents was added later than the contract's kinds; 16 to 19
// are reserved.
const (
	KindRecordWorkerEvents Kind = iota + 20
	KindRecordAct
)

// Commands about cron entries, replay and membership.
const (
	KindSetCron Kind = iota + 24
	KindRemoveCron
	KindPauseCron
	KindTickCrons

	KindAdvanceReplay // progress of a replay

	KindSetMembers // the list of members
	KindChangeMembers
	KindAdvanceMember
)

// Commands about backups, and the comparison of replicas.
const (
	KindHold    Kind = iota + 32 // reclaim nothing while a backup is made
	KindRestore                  // restore the ledger from a backup
	KindCheckConsistency
)

// Commands about the storage of records.
const (
	KindReclaim  Kind = iota + 40
	KindRelocate      // move records out of the lanes
)

// Later additions.
const (
	KindChangeQueue   Kind = iota + 42 // change the settings of a queue
	KindMarkIngested                   // up to which time lanes were ingested
	KindChangeJob                      // change a job that has not started
	KindSetRetention                   // retention settings of the cluster
	KindReleaseBodies                  // large bodies of failed jobs may be removed
)

// Commands about schemas and limits.
const (
	KindSetSchema Kind = iota + 60
	KindRemoveSchema
	KindSetLimit
	KindRemoveLimit
	KindPauseLimit
)

// Commands about operations.
const (
	KindStartOperation Kind = iota + 80
	KindChangeOperation
	KindStepOperation
)

// Command is one atomic change: it takes effect completely or not at all.
type Command interface {
	Kind() Kind
	apply(l *Ledger) Result
}

// NewCommand returns an empty command of kind k to decode into; ok is false for
// an unknown kind.
func NewCommand(k Kind) (c Command, ok bool) {
	t, ok := commandTypes[k]
	if !ok {
		return nil, false
	}
	return reflect.New(t).Interface().(Command), true
}

var commandTypes = func() map[Kind]reflect.Type {
	types := make(map[Kind]reflect.Type)
	for _, c := range [...]Command{
		(*Lead)(nil), (*Renew)(nil), (*Bootstrap)(nil), (*Ingest)(nil), (*Place)(nil), (*Settle)(nil), (*MarkPublished)(nil),
		(*AddQueue)(nil), (*RemoveQueue)(nil), (*PauseQueue)(nil), (*CancelJob)(nil), (*RemoveJob)(nil), (*RetryJob)(nil),
		(*MoveDispatch)(nil), (*Observe)(nil), (*RecordWorkerEvents)(nil), (*RecordAct)(nil), (*SetCron)(nil), (*RemoveCron)(nil), (*PauseCron)(nil),
		(*TickCrons)(nil), (*AdvanceReplay)(nil), (*SetMembers)(nil), (*ChangeMembers)(nil), (*AdvanceMember)(nil),
		(*CheckConsistency)(nil), (*Hold)(nil), (*Restore)(nil), (*AcquireAuthority)(nil), (*RenewAuthority)(nil),
		(*QueueDispatch)(nil), (*MarkNotified)(nil), (*MarkDelivered)(nil), (*MarkFailed)(nil), (*RequestReplay)(nil),
		(*CaptureSnapshot)(nil), (*Reclaim)(nil), (*Relocate)(nil), (*ChangeQueue)(nil), (*MarkIngested)(nil),
		(*ChangeJob)(nil), (*SetRetention)(nil), (*ReleaseBodies)(nil), (*SetSchema)(nil), (*RemoveSchema)(nil),
		(*SetLimit)(nil), (*RemoveLimit)(nil), (*PauseLimit)(nil),
		(*StartOperation)(nil), (*ChangeOperation)(nil), (*StepOperation)(nil),
	} {
		types[c.Kind()] = reflect.TypeOf(c).Elem()
	}
	return types
}()

// Lead acquires the authority for the Raft leader. It succeeds in a term later
// than the lease's, after the lease has expired, or for its present owner.
type Lead struct {
	Owner string
	Until time.Time
	Level uint8 // of the leader's build, see [Level]
}

// Renew extends the lease of the current authority.
type Renew struct{ Until time.Time }

// Bootstrap stores what a cluster has from its first tenure on: the secret that
// lease tokens are signed with, and the identities of the lanes. A second
// Bootstrap changes neither. StreamsCreated records that the streams of all
// generations up to Generation exist, so that a stream found missing later is known
// to be lost; 0 means the first generation.
type Bootstrap struct {
	Secret         []byte
	Lanes          []string
	StreamsCreated bool
	Generation     uint8
}

// StreamGeneration is the generation of the set of streams that this release uses. A
// cluster whose streams are of an earlier generation lacks the streams that were added
// since, and gets them created; any other stream that is missing was lost.
//
//	1  lanes, bodies, events, results, dead letters, logs
//	2  the large results have a stream of their own
//	3  the bases of history have a stream
const StreamGeneration = 3

// Ingest takes the lane's records after From, up to and including To, into the
// ledger, if Identity is the lane's identity and its cursor is at From.
type Ingest struct {
	Lane         uint8
	Identity     string
	From, To     uint64
	Jobs         []job.Job
	Rejected     []Rejection
	CreateQueues bool // a job of an unknown queue creates the queue; else it is rejected
}

// Rejection is a record that does not describe a valid job.
type Rejection struct {
	ID        job.ID
	Queue     string
	Seq       uint64
	Accepted  time.Time
	Reason    string
	Index     uint8  // see [job.Position]
	BlobOwner job.ID // see [job.Job.BlobOwner]
}

// Place assigns pending dispatches to executors. Placements that no longer apply
// are skipped; see [Result].
type Place struct{ Placements []Placement }

// Placement assigns the pending dispatch N of a waiting job to an executor: a worker
// or a runner, named by its node and channel.
type Placement struct {
	Job         job.ID
	N           uint32
	Node        string
	Incarnation uint64
	Channel     string
}

// Settle ends dispatches, each with the policy's verdict.
type Settle struct{ Settlements []Settlement }

// Settlement is how one dispatch ended, and what becomes of its job.
type Settlement struct {
	Job    job.ID
	N      uint32
	Next   job.Next
	At     time.Time // NextRetry, NextGiveBack: when the job is due; zero: immediately
	Loss   bool      // NextGiveBack: counts towards the job's losses
	Reason string    // unless NextDone
	Result job.Value
	Blob   *job.Blob
	Fault  *job.Fault

	// The executor that lost the dispatch, if the settlement only reports a
	// loss: it then applies only while the dispatch is at that executor. An
	// outcome of the job itself has Node "" and applies wherever the dispatch
	// is.
	Node        string
	Incarnation uint64

	Dropped *job.DroppedResult // NextDone: why the result is not kept
}

// MarkPublished removes from the outbox everything up to these numbers, which
// is published.
type MarkPublished struct {
	Events, Results, DeadLetters uint64
	Messages                     []ResultMessage
}

// ResultMessage locates published results: those from number First, up to the next
// message's First, are in the message with sequence number Seq of the result
// stream.
type ResultMessage struct{ First, Seq uint64 }

// AddQueue creates a queue.
type AddQueue struct {
	ID     job.ID
	Name   string
	Config job.QueueConfig
	Asked
}

// ChangeQueue changes settings of a queue. A lowered limit stops no running job:
// none starts until as many as necessary have ended.
type ChangeQueue struct {
	Name   string
	Change job.QueueChange
	Asked
}

// RemoveQueue removes a queue that has no unfinished jobs, together with its
// finished jobs.
type RemoveQueue struct {
	Name string
	Asked
}

// PauseQueue pauses a queue or resumes it. With OnlyIfIdle it is refused while
// a job of the queue is active.
type PauseQueue struct {
	Name       string
	Paused     bool
	OnlyIfIdle bool
	Asked
}

// CancelJob ends a waiting or delayed job, and marks an active one to be
// recalled. With a Type, which is then that of its fault, the job fails instead, unless
// it is active: the system found that it cannot run.
// QueueGone: the reason is that its queue is being removed; the worker receives
// that as the recall's reason.
type CancelJob struct {
	Job       job.ID
	Reason    string
	Type      string
	QueueGone bool
	Asked
}

// RemoveJob deletes a job that is not active.
type RemoveJob struct {
	Job job.ID
	Asked
}

// RetryJob makes a failed, cancelled or expired job waiting again. Its attempts start again from 0
// unless KeepAttempts is set. N is the dispatch whose failure the caller refers
// to: if another dispatch came later, the command is refused; 0 means the last
// one. Relocated is the sequence of a copy of the job's record in the stream of
// relocated records, which the job uses if its own record may have been purged;
// 0: there is no copy. AsOf is the index of a ledger after which the job's dead letter was
// found; 0: it was not looked for. A job with a large body needs it if bodies were released
// since.
type RetryJob struct {
	Job          job.ID
	N            uint32
	KeepAttempts bool
	Relocated    uint64
	AsOf         uint64
	Asked
}

// MoveDispatch moves a running dispatch to the node to which its worker has
// reconnected.
type MoveDispatch struct {
	Job         job.ID
	N           uint32
	Node        string
	Incarnation uint64
	Channel     string
}

// Observe records observations: events that change no state.
type Observe struct{ Observations []Observation }

// Observation is one of the contract's run events. Subject is the event's
// owner, Detail its second field.
type Observation struct {
	Event   EventKind
	Subject string
	Detail  string
}

// RecordWorkerEvents records which workers of a node stalled and recovered. The
// node numbers its events from 1 in each incarnation; events that are already
// recorded are skipped.
type RecordWorkerEvents struct {
	Node        string
	Incarnation uint64
	First       uint64 // number of Events[0]
	Events      []job.WorkerEvent
}

// SetCron creates a cron entry or, with Replace, changes one. The authority
// sets Next, the entry's next tick.
type SetCron struct {
	Cron    Cron
	Replace bool
	Next    time.Time
	Asked
}

// RemoveCron removes a cron entry. An entry declared in the configuration is
// removed only if Declared is set, which means that the configuration no longer
// has it.
type RemoveCron struct {
	Name     string
	Declared bool
	Asked
}

// PauseCron pauses a cron entry or resumes it. The authority sets Next, the
// next tick of an entry that is resumed.
type PauseCron struct {
	Name   string
	Paused bool
	Next   time.Time
	Asked
}

// TickCrons records that ticks of cron entries are due.
type TickCrons struct{ Ticks []CronTick }

// CronTick is the tick at time At of an entry whose revision is Rev, and the
// following tick. If it neither creates a job nor counts as missed, the entry waits for Next
// instead of At: the rules by which ticks are computed have changed.
type CronTick struct {
	Name     string
	Rev      uint64
	At, Next time.Time // Next is zero if there is none; before At only in an entry of level 8
	Missed   uint32    // number of ticks from At on, before Next, that create no job
	Fire     bool      // whether the tick creates a job
}

// CheckConsistency changes nothing. Each member hashes its ledger as it is
// after this command's entry; if the hashes differ, a replica has diverged.
type CheckConsistency struct{}

func (*CheckConsistency) apply(*Ledger) Result { return Result{} }

func (*Lead) Kind() Kind               { return KindLead }
func (*Renew) Kind() Kind              { return KindRenew }
func (*Bootstrap) Kind() Kind          { return KindBootstrap }
func (*Ingest) Kind() Kind             { return KindIngest }
func (*Place) Kind() Kind              { return KindPlace }
func (*Settle) Kind() Kind             { return KindSettle }
func (*MarkPublished) Kind() Kind      { return KindMarkPublished }
func (*AddQueue) Kind() Kind           { return KindAddQueue }
func (*ChangeQueue) Kind() Kind        { return KindChangeQueue }
func (*RemoveQueue) Kind() Kind        { return KindRemoveQueue }
func (*PauseQueue) Kind() Kind         { return KindPauseQueue }
func (*CancelJob) Kind() Kind          { return KindCancelJob }
func (*RemoveJob) Kind() Kind          { return KindRemoveJob }
func (*RetryJob) Kind() Kind           { return KindRetryJob }
func (*MoveDispatch) Kind() Kind       { return KindMoveDispatch }
func (*Observe) Kind() Kind            { return KindObserve }
func (*RecordWorkerEvents) Kind() Kind { return KindRecordWorkerEvents }
func (*RecordAct) Kind() Kind          { return KindRecordAct }
func (*SetCron) Kind() Kind            { return KindSetCron }
func (*RemoveCron) Kind() Kind         { return KindRemoveCron }
func (*PauseCron) Kind() Kind          { return KindPauseCron }
func (*TickCrons) Kind() Kind          { return KindTickCrons }
func (*CheckConsistency) Kind() Kind   { return KindCheckConsistency }
