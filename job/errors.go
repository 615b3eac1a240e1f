package job

import (
	"errors"
	"fmt"
	"time"
)

// What a request about queues or jobs may be refused with. Edges and command
// line translate them into the words of their own protocol, so they stay the
// same in every room; details come wrapped around them.
var (
	ErrQueueNotFound = errors.New("queue does not exist")
	ErrQueueExists   = errors.New("queue exists already")
	ErrTooManyQueues = errors.New("the yard has as many queues as it may; remove one first")
	ErrQueueNotEmpty = errors.New("queue still holds jobs that have not ended")
	ErrQueuePaused   = errors.New("queue is paused already")
	ErrQueueRunning  = errors.New("queue is not paused")
	ErrSystemQueue   = errors.New("queue belongs to the yard itself")

	ErrJobNotFound  = errors.New("job does not exist")
	ErrNotRemovable = errors.New("job cannot be removed in its state")
	ErrNotActive    = errors.New("job has no dispatch under way")
	ErrMalformed    = errors.New("the job's record cannot be a job; enqueue it again, corrected")
	ErrNotFailed    = errors.New("job has not failed, so there is nothing to retry")
	ErrJobEnded     = errors.New("job has ended already")

	// ErrLeaseLost refuses a word about a dispatch that is no longer the
	// job's current one.
	ErrLeaseLost = errors.New("dispatch is no longer the current one of its job")

	// ErrTooLarge refuses a body or a result beyond its limit.
	ErrTooLarge = errors.New("too large")
)

// UnavailableError says that the yard cannot answer now: no authority, no
// quorum, or too many requests under way. Nothing is known to have happened;
// whoever repeats the request should name the same key.
type UnavailableError struct {
	Reason     string
	RetryAfter time.Duration // when another try makes sense; 0: not known
}

func (e *UnavailableError) Error() string {
	if e.RetryAfter <= 0 {
		return "yard is unavailable: " + e.Reason
	}
	return fmt.Sprintf("yard is unavailable: %s; try again in %s", e.Reason, e.RetryAfter)
}
