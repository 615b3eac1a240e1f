package jobview

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// addError replaces the error of a job's last attempt, which the ledger has cut, by the whole error. It keeps the
// cut one if the whole error is not stored, or cannot be read now.
func (v *Viewer) addError(ctx context.Context, view *job.View) {
	if view.State != job.Active && view.State != job.Completed { // then the error is an earlier one, and not shown
		view.Fault = v.wholeError(ctx, view.ID, view.Dispatches, view.State == job.Waiting, view.Fault)
	}
}

// AddErrorOf is like addError, for a job of the API.
func (v *Viewer) AddErrorOf(ctx context.Context, j *api.Job) {
	j.Error = v.wholeError(ctx, j.ID, j.Dispatches, j.State == job.Waiting.String(), j.Error)
}

// wholeError returns the whole error of the last dispatch that failed, or fault if the whole error cannot be
// read. fault is the error as the ledger has it; nil means that no dispatch failed. n is the number of the
// job's current dispatch, which has not failed yet if the job waits.
func (v *Viewer) wholeError(ctx context.Context, id job.ID, n uint32, waits bool, fault *job.Fault) *job.Fault {
	if fault == nil || len(fault.Details) == 0 && !strings.HasSuffix(fault.Message, " (cut)") {
		return fault
	}
	if waits {
		n--
	}
	whole, err := v.Reader.AttemptError(ctx, id, n)
	if err != nil {
		return fault
	}
	replaced := *fault
	if replaced.Details = whole.Error.Details; strings.HasSuffix(fault.Message, " (cut)") {
		replaced.Message = whole.Error.Message
	}
	return &replaced
}

// Bounds of a reply with the errors of a job.
const (
	maxErrors     = 1000
	defaultErrors = 100
	maxErrorBytes = 512 << 10
)

// HandleErrors returns the errors of a job's last attempts.
func (v *Viewer) HandleErrors(ctx context.Context, q *api.JobErrorsRequest) (*api.JobErrors, error) {
	switch {
	case q.ID == "":
		return nil, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	case q.Limit < 0 || q.Limit > maxErrors:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d", q.Limit, maxErrors)}
	case q.Limit == 0:
		q.Limit = defaultErrors
	}
	id, err := v.Locate(ctx, q.ID, q.Queue)
	_, uncertain := errors.AsType[*job.UnavailableError](err)
	unknown := (uncertain || errors.Is(err, job.ErrJobNotFound)) && id != job.ID{} // its errors may still be stored
	if err != nil && !unknown {
		return nil, err
	}
	last, more, readErr := v.Reader.AttemptErrors(ctx, id, q.Limit, maxErrorBytes)
	switch {
	case readErr != nil:
		return nil, &job.UnavailableError{Reason: "the errors of the job cannot be read now: " + readErr.Error(), RetryAfter: 500 * time.Millisecond}
	case unknown && len(last) == 0:
		return nil, err
	}
	reply := &api.JobErrors{ID: id, Errors: last, More: more}
	if reply.Errors == nil {
		reply.Errors = []job.AttemptError{}
	}
	return reply, nil
}
