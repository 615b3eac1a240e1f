package edge

import (
	"errors"
	"strings"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// errorCodes maps the errors of package job to codes of the protocol.
var errorCodes = [...]struct {
	err  error
	code overhop.Code
}{
	{job.ErrQueueNotFound, overhop.CodeQueueNotFound},
	{job.ErrQueueExists, overhop.CodeDuplicateQueue},
	{job.ErrTooManyQueues, overhop.CodeQueuePool},
	{job.ErrQueueNotEmpty, overhop.CodeQueueNotEmpty},
	{job.ErrQueuePaused, overhop.CodeQueuePaused},
	{job.ErrQueueNotPaused, overhop.CodeQueueRunning},
	{job.ErrSystemQueue, overhop.CodeSystemQueue},
	{job.ErrBadQueueName, overhop.CodeInvalidQueueName},
	{job.ErrJobNotFound, overhop.CodeJobNotFound},
	{job.ErrNotRemovable, overhop.CodeJobNotRemovable},
	{job.ErrNotActive, overhop.CodeJobNotActive},
	{job.ErrNotFailed, overhop.CodeJobNotActive},
	{job.ErrMalformed, overhop.CodeInvalidJobPayload},
	{job.ErrJobEnded, overhop.CodeAlreadyTerminal},
	{job.ErrLeaseLost, overhop.CodeLeaseLost},
	{job.ErrTooLarge, overhop.CodeResultTooLarge},
	{job.ErrKeyTooLong, overhop.CodeInvalidJobPayload},
}

// wireError returns what to send for an error. An unknown error is an internal
// failure, JOB_PERSISTENCE_ERROR.
func wireError(err error) codeError {
	if e, ok := errors.AsType[*codeError](err); ok {
		return *e
	}
	for _, r := range errorCodes {
		if errors.Is(err, r.err) {
			return codeError{r.code, err.Error(), nil}
		}
	}
	if e, ok := errors.AsType[*job.UnavailableError](err); ok {
		return codeError{overhop.CodeUnavailable, err.Error(), overhop.Fields{"retry_after_ms": max(e.RetryAfter.Milliseconds(), 100)}}
	}
	if e, ok := errors.AsType[*job.DuplicateError](err); ok {
		return codeError{overhop.CodeDuplicateJob, err.Error(), overhop.Fields{"jid": jid(e.Queue, e.ID)}}
	}
	if e, ok := errors.AsType[*job.RateLimitedError](err); ok {
		return codeError{overhop.CodeRateLimited, err.Error(), overhop.Fields{"retry_after_ms": max(e.RetryAfter.Milliseconds(), 1)}}
	}
	if _, ok := errors.AsType[*job.InvalidError](err); ok {
		// The one job field whose name differs between the yard's JSON and Overhop.
		return codeError{overhop.CodeInvalidJobPayload, strings.ReplaceAll(err.Error(), "run_at", "scheduled_at"), nil}
	}
	return codeError{overhop.CodeJobPersistence, err.Error(), nil}
}

// codeError is an error as sent to the client, with machine-readable details.
type codeError struct {
	code    overhop.Code
	message string
	details overhop.Fields
}

func (e *codeError) Error() string { return e.message }

func appendError(b []byte, rid string, err error) []byte {
	e := wireError(err)
	return overhop.AppendErr(b, rid, e.code, e.message, e.details)
}
