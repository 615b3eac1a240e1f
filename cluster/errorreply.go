package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"

	"github.com/nats-io/nats.go"
)

// The errors that have a code of their own.
var (
	invalidErrors  = []error{job.ErrBadQueueName, job.ErrBadID, job.ErrKeyTooLong}
	notFoundErrors = []error{job.ErrQueueNotFound, job.ErrJobNotFound, streams.ErrNotStored}
	conflictErrors = []error{
		job.ErrQueueExists, job.ErrTooManyQueues, job.ErrQueueNotEmpty, job.ErrQueuePaused, job.ErrQueueNotPaused, job.ErrSystemQueue,
		job.ErrNotRemovable, job.ErrMalformed, job.ErrNotFailed, job.ErrNotActive, job.ErrJobEnded, job.ErrNotChangeable, job.ErrExpiresBefore, job.ErrLeaseLost,
		ledger.ErrBackupRunning, ledger.ErrNotFresh, ledger.ErrNotRestoring, ledger.ErrRestoreIncomplete, ledger.ErrMembersChanging,
	}
)

// AsAPIError returns err as an [*api.Error], with a code that depends on its kind;
// the default is 500.
func AsAPIError(err error) *api.Error {
	if apiErr, ok := errors.AsType[*api.Error](err); ok {
		return apiErr
	}
	code, retryAfter := errorCode(err)
	return &api.Error{Code: code, Text: err.Error(), RetryAfter: retryAfter, Data: errorData(err)}
}

// errorData returns the details of an error, nil if it has none. They have a reason, a word
// for programs.
func errorData(err error) []byte {
	var details struct {
		ID            job.ID  `json:"id,omitzero"`
		Reason        string  `json:"reason"`
		Path          *string `json:"path,omitempty"`
		SchemaVersion uint64  `json:"schema_version,omitempty"`
	}
	removed, isRemoved := errors.AsType[*job.RemovedError](err)
	payload, isPayload := errors.AsType[*job.PayloadError](err)
	switch {
	case isPayload:
		details.Reason, details.Path, details.SchemaVersion = "payload_schema", &payload.Path, payload.Version
	case isRemoved:
		details.ID, details.Reason = removed.ID, job.CodeRemoved
	case errors.Is(err, job.ErrTooManyQueues):
		details.Reason = "too_many_queues"
	default:
		return nil
	}
	data, _ := json.Marshal(details) // cannot fail
	return data
}

// errorCode returns the code of an error, and after what time a retry makes sense, 0 if
// that is unknown.
func errorCode(err error) (code string, retryAfter time.Duration) {
	if errors.Is(err, streams.ErrUnknown) {
		return api.CodeUnknown, time.Second
	}
	if unavailable, ok := errors.AsType[*job.UnavailableError](err); ok {
		return api.CodeUnavailable, unavailable.RetryAfter
	}
	if limited, ok := errors.AsType[*job.RateLimitedError](err); ok {
		return api.CodeLimited, limited.RetryAfter
	}
	if _, removed := errors.AsType[*job.RemovedError](err); removed {
		return api.CodeConflict, 0
	}
	_, invalid := errors.AsType[*job.InvalidError](err)
	isErr := func(target error) bool { return errors.Is(err, target) }
	switch {
	case isErr(job.ErrTooLarge):
		return api.CodeTooLarge, 0
	case invalid, slices.ContainsFunc(invalidErrors, isErr):
		return api.CodeInvalid, 0
	case slices.ContainsFunc(notFoundErrors, isErr):
		return api.CodeNotFound, 0
	case isErr(job.ErrRecordReclaimed):
		return api.CodeGone, 0
	case slices.ContainsFunc(conflictErrors, isErr):
		return api.CodeConflict, 0
	}
	return api.CodeInternal, 0
}

// errorReply returns the message that replies to the subject reply with an error, in the
// convention of NATS services. Its body is the [api.ErrorReply], for clients that show no
// headers. node is this node's name.
func errorReply(reply, node string, e *api.Error) *nats.Msg {
	header := nats.Header{subjects.HeaderError: []string{e.Text}, subjects.HeaderErrorCode: []string{e.Code}, subjects.HeaderNode: []string{node}}
	if e.RetryAfter > 0 {
		header[subjects.HeaderRetryAfter] = []string{strconv.FormatInt(e.RetryAfter.Milliseconds(), 10)}
	}
	return &nats.Msg{Subject: reply, Header: header, Data: e.Reply()}
}

// parseErrorReply returns the error of an error reply, nil if m is not one.
func parseErrorReply(m *nats.Msg) *api.Error {
	code := m.Header.Get(subjects.HeaderErrorCode)
	if code == "" {
		return nil
	}
	milliseconds, _ := strconv.ParseInt(m.Header.Get(subjects.HeaderRetryAfter), 10, 64) // absent or malformed: 0, unknown
	retryAfter := time.Duration(max(milliseconds, 0)) * time.Millisecond
	var body api.ErrorReply
	if json.Unmarshal(m.Data, &body) != nil {
		body.Error.Data = nil // the headers suffice
	}
	return &api.Error{Code: code, Text: m.Header.Get(subjects.HeaderError), RetryAfter: retryAfter, Data: body.Error.Data}
}

// ErrorText returns the text of err for a user, which for the end of a deadline is
// plainer than that of the context package.
func ErrorText(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	return err.Error()
}
