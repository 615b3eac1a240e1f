package job

import (
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Reasons why a request about queues or jobs is refused. The edge, the HTTP API
// and the command line translate them into their own protocols by errors.Is;
// details are added by wrapping.
var (
	ErrQueueNotFound  = errors.New("queue does not exist")
	ErrQueueExists    = errors.New("queue exists already")
	ErrTooManyQueues  = errors.New("too_many_queues: the yard has the maximum number of queues")
	ErrQueueNotEmpty  = errors.New("queue still holds jobs that have not ended")
	ErrQueuePaused    = errors.New("queue is paused already")
	ErrQueueNotPaused = errors.New("queue is not paused")
	ErrSystemQueue    = errors.New("queue belongs to the yard itself")

	ErrJobNotFound   = errors.New("job does not exist")
	ErrNotRemovable  = errors.New("job cannot be removed in its state")
	ErrNotActive     = errors.New("job has no dispatch under way")
	ErrMalformed     = errors.New("the job's record cannot be a job; enqueue it again, corrected")
	ErrNotFailed     = errors.New("job has not failed, so there is nothing to retry")
	ErrNotChangeable = errors.New("only a waiting or delayed job can be changed")
	ErrExpiresBefore = errors.New("the job would expire before it starts")
	ErrJobEnded      = errors.New("job has ended already")

	// ErrJobForgotten is returned for a change of a job that has ended and that only the index still
	// has. It is an ErrJobEnded.
	ErrJobForgotten error = forgottenError{}

	// ErrRecordReclaimed is returned for a retry of a job whose record is no
	// longer stored, and neither is its dead letter.
	ErrRecordReclaimed = errors.New("letter_gone: neither the record of the job nor a dead letter with it is stored any longer; enqueue the job again")

	// ErrLeaseLost is returned for a request about a dispatch that is not, or
	// is no longer, the current dispatch of its job.
	ErrLeaseLost = errors.New("dispatch is no longer the current one of its job")

	// ErrNoContent is returned for a job's result or params if it has none, or has not
	// ended; ErrContentGone if they are no longer stored.
	ErrNoContent   = errors.New("there is no such value")
	ErrContentGone = errors.New("the value is no longer stored")

	// ErrTooLarge is returned for a body or a result above its size limit.
	ErrTooLarge = errors.New("too large")
)

// forgottenError is the type of [ErrJobForgotten].
type forgottenError struct{}

func (forgottenError) Error() string {
	return "the ledger has forgotten it, so that it can be found, but not changed; 'yardmaster job replay' enqueues a copy of it"
}

func (forgottenError) Unwrap() error { return ErrJobEnded }

// UnavailableError is returned when the cluster cannot answer now: there is no
// authority, no quorum, or too many requests are pending. The request may or
// may not have taken effect, so a caller that repeats it should use the same
// idempotency key.
type UnavailableError struct {
	Reason     string
	RetryAfter time.Duration // when to try again; 0: not known
}

func (e *UnavailableError) Error() string {
	if e.RetryAfter <= 0 {
		return "yard is unavailable: " + e.Reason
	}
	return fmt.Sprintf("yard is unavailable: %s; try again in %s", e.Reason, duration.Format(e.RetryAfter))
}
