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
	{job.ErrNotChangeable, overhop.CodeJobNotPending},
	{job.ErrExpiresBefore, overhop.CodeInvalidJobPayload},
	{job.ErrNotFailed, overhop.CodeJobNotActive},
	{job.ErrRecordReclaimed, overhop.CodeJobNotActive},
	{job.ErrMalformed, overhop.CodeInvalidJobPayload},
	{job.ErrJobEnded, overhop.CodeAlreadyTerminal},
	{job.ErrLeaseLost, overhop.CodeLeaseLost},
	{job.ErrTooLarge, overhop.CodeResultTooLarge},
	{job.ErrNoContent, overhop.CodeContentNotFound},
	{job.ErrContentGone, overhop.CodeContentGone},
	{job.ErrKeyTooLong, overhop.CodeInvalidJobPayload},
}

// wireError returns what to send for an error. An unknown error is an internal
// failure, JOB_PERSISTENCE_ERROR.
func wireError(err error) codeError {
	if sent, ok := errors.AsType[*codeError](err); ok {
		return *sent
	}
	for _, known := range errorCodes {
		if errors.Is(err, known.err) {
			return codeError{known.code, err.Error(), nil}
		}
	}
	if unavailable, ok := errors.AsType[*job.UnavailableError](err); ok {
		return codeError{overhop.CodeUnavailable, err.Error(), overhop.Fields{"retry_after_ms": max(unavailable.RetryAfter.Milliseconds(), 100)}}
	}
	if limited, ok := errors.AsType[*job.RateLimitedError](err); ok {
		return codeError{overhop.CodeRateLimited, err.Error(), overhop.Fields{"retry_after_ms": max(limited.RetryAfter.Milliseconds(), 1)}}
	}
	if duplicate, ok := errors.AsType[*job.DuplicateError](err); ok {
		return codeError{overhop.CodeDuplicateJob, err.Error(), overhop.Fields{"jid": jid(duplicate.Queue, duplicate.ID)}}
	}
	if removed, ok := errors.AsType[*job.RemovedError](err); ok {
		return codeError{overhop.CodeRemovedJob, err.Error(), overhop.Fields{"jid": jid(removed.Queue, removed.ID)}}
	}
	if payload, ok := errors.AsType[*job.PayloadError](err); ok {
		return codeError{overhop.CodeInvalidJobPayload, err.Error(), overhop.Fields{"path": payload.Path, "schema_version": int64(payload.Version)}}
	}
	if _, ok := errors.AsType[*job.InvalidError](err); ok {
		// The one job field whose name differs between the cluster's JSON and Overhop.
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

// tooLarge returns an error for something larger than limit, in bytes.
func tooLarge(code overhop.Code, message string, limit int) error {
	return &codeError{code, message, overhop.Fields{"limit": limit}}
}

// appendError appends a framed ERR for err to b.
func appendError(b []byte, rid string, err error) []byte {
	sent := wireError(err)
	return overhop.AppendErr(b, rid, sent.code, sent.message, sent.details)
}
