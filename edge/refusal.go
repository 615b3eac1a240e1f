package edge

import (
	"errors"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// refusals are the codes of the errors that the rooms share.
var refusals = [...]struct {
	err  error
	code overhop.Code
}{
	{job.ErrQueueNotFound, overhop.CodeQueueNotFound},
	{job.ErrQueueExists, overhop.CodeDuplicateQueue},
	{job.ErrQueueNotEmpty, overhop.CodeQueueNotEmpty},
	{job.ErrQueuePaused, overhop.CodeQueuePaused},
	{job.ErrQueueRunning, overhop.CodeQueueRunning},
	{job.ErrSystemQueue, overhop.CodeSystemQueue},
	{job.ErrBadQueueName, overhop.CodeInvalidQueueName},
	{job.ErrJobNotFound, overhop.CodeJobNotFound},
	{job.ErrNotRemovable, overhop.CodeJobNotRemovable},
	{job.ErrNotActive, overhop.CodeJobNotActive},
	{job.ErrJobEnded, overhop.CodeAlreadyTerminal},
	{job.ErrLeaseLost, overhop.CodeLeaseLost},
	{job.ErrTooLarge, overhop.CodeResultTooLarge},
	{job.ErrKeyTooLong, overhop.CodeInvalidJobPayload},
}

// refusal is an error in the wire's words. One that nobody foresaw is the
// yard's own failure, JOB_PERSISTENCE_ERROR.
func refusal(err error) (code overhop.Code, message string, details overhop.Fields) {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			return r.code, err.Error(), nil
		}
	}
	var coded *codeError
	var away *job.UnavailableError
	var invalid *job.InvalidError
	switch {
	case errors.As(err, &coded):
		return coded.code, coded.message, nil
	case errors.As(err, &away):
		return overhop.CodeUnavailable, err.Error(), overhop.Fields{"retry_after_ms": max(away.RetryAfter.Milliseconds(), 100)}
	case errors.As(err, &invalid):
		return overhop.CodeInvalidJobPayload, err.Error(), nil
	}
	return overhop.CodeJobPersistence, err.Error(), nil
}

// unforeseen tells an error that is the yard's own failure, not the client's.
func unforeseen(err error) bool {
	code, _, _ := refusal(err)
	return code == overhop.CodeJobPersistence
}

// codeError refuses with a code that belongs to no error of package job.
type codeError struct {
	code    overhop.Code
	message string
}

func (e *codeError) Error() string { return e.message }
