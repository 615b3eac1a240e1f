package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Limits of operations.
const (
	MaxOperations        = 64                 // that have not ended
	MaxEndedOperations   = 256                // that have ended
	OperationKept        = 7 * 24 * time.Hour // how long an operation that has ended is kept
	MaxOperationQuery    = 16 << 10           // bytes
	MaxOperationParams   = 16 << 10           // bytes
	MaxOperationFailures = 20                 // jobs that an operation names with their errors
	MaxOperationJobs     = 512                // jobs of one step
	MaxOperationRate     = 100_000            // jobs per second
	maxOperationText     = 256                // bytes of an error that is kept
)

// Errors of commands about operations.
var (
	ErrTooManyOperations  = fmt.Errorf("the yard already has the maximum of %d operations that have not ended; wait for one, or cancel one", MaxOperations)
	ErrOperationNotFound  = errors.New("there is no such operation")
	ErrOperationEnded     = errors.New("the operation has ended")
	ErrOperationStopped   = errors.New("the operation is not running")
	ErrOperationMoved     = errors.New("the operation's cursor is at another job")
	ErrOperationReclaimed = errors.New("the record of a job of the step has been reclaimed")
)

// OperationAction is what an operation does to each job.
type OperationAction uint8

// The actions.
const (
	OperationRetry   OperationAction = iota + 1 // run failed, cancelled and expired jobs again
	OperationCancel                             // cancel jobs that have not ended
	OperationRemove                             // remove jobs that are not active
	OperationRequeue                            // run the jobs of dead letters again, and remove the letters
)

// operationActions has the names of the actions.
var operationActions = [...]string{OperationRetry: "retry", OperationCancel: "cancel", OperationRemove: "remove", OperationRequeue: "requeue"}

func (a OperationAction) String() string {
	if a.valid() {
		return operationActions[a]
	}
	return "unknown"
}

func (a OperationAction) valid() bool { return a > 0 && int(a) < len(operationActions) }

// ParseOperationAction returns the action of a name; ok is false if there is none.
func ParseOperationAction(name string) (action OperationAction, ok bool) {
	i := slices.Index(operationActions[1:], name)
	return OperationAction(i + 1), i >= 0
}

// OperationState is the state of an operation.
type OperationState uint8

// The states.
const (
	OperationRunning OperationState = iota + 1
	OperationPaused
	OperationDone
	OperationCancelled
)

// operationStates has the names of the states.
var operationStates = [...]string{OperationRunning: "running", OperationPaused: "paused", OperationDone: "done", OperationCancelled: "cancelled"}

func (s OperationState) String() string {
	if s.valid() {
		return operationStates[s]
	}
	return "unknown"
}

func (s OperationState) valid() bool { return s > 0 && int(s) < len(operationStates) }

// Ended reports whether the operation changes no more jobs.
func (s OperationState) Ended() bool { return s == OperationDone || s == OperationCancelled }

// OperationSettings are what an operation does, and to which jobs.
type OperationSettings struct {
	Key          string // a second operation with the key of one that is known is not started; "": none
	Action       OperationAction
	Query        string    // in the canonical form of index/query; all times in it are absolute
	Until        time.Time // jobs that were accepted later are left as they are
	Rate         uint32    // jobs per second; 0: as fast as the cluster takes them
	Params       []byte    // OperationRequeue: JSON merge patch for the params of the new jobs; nil: none
	To           string    // OperationRequeue: another queue; "": that of the job
	KeepAttempts bool      // the attempts so far count
	Expected     uint64    // number of jobs that matched before the start; 0: they were not all counted
}

// OperationCounts are the numbers of jobs that an operation has come to.
type OperationCounts struct {
	Changed uint64 // the action was carried out
	Skipped Skips  // they were left as they were
	Failed  uint64 // the action was refused
}

// Add adds the numbers of o.
func (c *OperationCounts) Add(o OperationCounts) {
	c.Changed, c.Failed = c.Changed+o.Changed, c.Failed+o.Failed
	c.Skipped.Add(o.Skipped)
}

// Matched returns the number of jobs that an operation has come to.
func (c OperationCounts) Matched() uint64 { return c.Changed + c.Skipped.Total() + c.Failed }

// OperationFailure is a job that an operation could not change.
type OperationFailure struct {
	Job  job.ID
	Text string
}

// Operation is an action that is carried out on all jobs that match a query, and how far it is.
type Operation struct {
	OperationSettings
	OperationCounts
	Number   uint64
	Index    uint64 // of the entry that started it
	By       Actor
	State    OperationState
	Cursor   JobPlace           // of the last job that it has come to
	Failures []OperationFailure // the first jobs that failed, at most [MaxOperationFailures]
	Waiting  string             // what its next step waits for; "": nothing
	Started  time.Time
	Updated  time.Time // when any field was changed last
	Ended    time.Time // zero: it has not ended
}

// operations are the operations of the cluster. The operations and the list of them are
// immutable: a change makes new ones.
type operations struct {
	last    uint64       // number of the last one
	all     []*Operation // by number
	firstAt int64        // when the one ended that ended first, in Unix nanoseconds; 0: none has ended
}

// Operations returns the operations in the order of their numbers. They must not be changed,
// and remain as they are when the ledger changes.
func (o *operations) Operations() []*Operation { return o.all }

// Operation returns the operation with a number, or nil.
func (o *operations) Operation(number uint64) *Operation {
	if i, found := o.find(number); found {
		return o.all[i]
	}
	return nil
}

func (o *operations) find(number uint64) (int, bool) {
	return slices.BinarySearchFunc(o.all, number, func(op *Operation, n uint64) int { return cmp.Compare(op.Number, n) })
}

// put stores an operation in place of the one with its number, or as a new one.
func (o *operations) put(op *Operation) {
	all := slices.Clone(o.all)
	if i, found := o.find(op.Number); found {
		all[i] = op
	} else {
		all = append(all, op)
	}
	o.set(all)
}

func (o *operations) set(all []*Operation) {
	o.all, o.firstAt = all, 0
	for _, op := range all {
		if ended := op.Ended.UnixNano(); op.State.Ended() && (o.firstAt == 0 || ended < o.firstAt) {
			o.firstAt = ended
		}
	}
}

// forgetOperations removes operations that ended long ago, and the first ones to have ended of
// those beyond [MaxEndedOperations].
func (l *Ledger) forgetOperations() {
	o := &l.operations
	ended := 0
	for _, op := range o.all {
		if op.State.Ended() {
			ended++
		}
	}
	for o.firstAt != 0 && (ended > MaxEndedOperations || l.now-o.firstAt > int64(OperationKept)) {
		i := slices.IndexFunc(o.all, func(op *Operation) bool { return op.State.Ended() && op.Ended.UnixNano() == o.firstAt })
		o.set(slices.Delete(slices.Clone(o.all), i, i+1))
		ended--
	}
}

// pruneOperations is forgetOperations, in every entry after which one is to be removed.
func (l *Ledger) pruneOperations() {
	if l.operations.firstAt != 0 && l.now-l.operations.firstAt > int64(OperationKept) {
		l.forgetOperations()
	}
}

// pauseRestored pauses the operations of a backup, whose jobs may have gone on elsewhere since.
func (l *Ledger) pauseRestored() {
	for _, op := range l.operations.all {
		if op.State.Ended() {
			continue
		}
		next := *op
		next.State, next.Index, next.Updated = OperationPaused, l.index, l.Now()
		next.Waiting = "its cluster was restored from a backup: resume it if it is still wanted"
		l.operations.put(&next)
	}
}

// operations encodes or decodes the operations in the order of their numbers.
func (c *codec) operations(o *operations) {
	c.fields(&o.last)
	all := o.all
	list(c, &all, func(p **Operation) {
		if c.decoding() {
			*p = new(Operation)
		}
		op := *p
		c.fields(&op.Number, &op.Index, &op.Key, (*uint8)(&op.Action), &op.Query, &op.Until, &op.Rate, &op.Params, &op.To, &op.KeepAttempts, &op.Expected,
			&op.By.Name, (*string)(&op.By.Door), &op.By.Reason, (*uint8)(&op.State), &op.Cursor.Accepted, &op.Cursor.ID,
			&op.Changed, &op.Failed, &op.Waiting, &op.Started, &op.Updated, &op.Ended)
		for _, n := range op.Skipped.counts() {
			c.fields(n)
		}
		list(c, &op.Failures, func(f *OperationFailure) { c.fields(&f.Job, &f.Text) })
		if !op.Action.valid() || !op.State.valid() {
			c.fail(errCorrupt)
		}
	})
	if c.decoding() {
		o.set(all)
	}
}
