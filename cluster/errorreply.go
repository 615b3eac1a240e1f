package cluster

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"

	"github.com/nats-io/nats.go"
)

// AsAPIError returns err as an [*api.Error], with a code that depends on its kind;
// the default is 500.
func AsAPIError(err error) *api.Error {
	var (
		apiErr      *api.Error
		invalid     *job.InvalidError
		unavailable *job.UnavailableError
		limited     *job.RateLimitedError
	)
	switch {
	case errors.As(err, &apiErr):
		return apiErr
	case errors.Is(err, streams.ErrUnknown):
		return &api.Error{Code: api.CodeUnknown, Text: err.Error(), RetryAfter: time.Second}
	case errors.As(err, &unavailable):
		return &api.Error{Code: api.CodeUnavailable, Text: err.Error(), RetryAfter: unavailable.RetryAfter}
	case errors.As(err, &limited):
		return &api.Error{Code: api.CodeLimited, Text: err.Error(), RetryAfter: limited.RetryAfter}
	case errors.Is(err, job.ErrTooLarge):
		return &api.Error{Code: api.CodeTooLarge, Text: err.Error()}
	case errors.As(err, &invalid), isAny(err, job.ErrBadQueueName, job.ErrBadID, job.ErrKeyTooLong):
		return &api.Error{Code: api.CodeInvalid, Text: err.Error()}
	case isAny(err, job.ErrQueueNotFound, job.ErrJobNotFound, streams.ErrNotStored):
		return &api.Error{Code: api.CodeNotFound, Text: err.Error()}
	case isAny(err, job.ErrQueueExists, job.ErrQueueNotEmpty, job.ErrQueuePaused, job.ErrQueueNotPaused, job.ErrSystemQueue,
		job.ErrNotRemovable, job.ErrMalformed, job.ErrNotFailed, job.ErrNotActive, job.ErrJobEnded, job.ErrLeaseLost,
		ledger.ErrBackupRunning, ledger.ErrNotFresh, ledger.ErrNotRestoring, ledger.ErrRestoreIncomplete, ledger.ErrMembersChanging):
		return &api.Error{Code: api.CodeConflict, Text: err.Error()}
	}
	return &api.Error{Code: api.CodeInternal, Text: err.Error()}
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// errorReply returns an error reply in the convention of NATS services.
func errorReply(reply, node string, e *api.Error) *nats.Msg {
	h := nats.Header{subjects.HeaderError: []string{e.Text}, subjects.HeaderErrorCode: []string{e.Code}, subjects.HeaderNode: []string{node}}
	if e.RetryAfter > 0 {
		h[subjects.HeaderRetryAfter] = []string{strconv.FormatInt(e.RetryAfter.Milliseconds(), 10)}
	}
	return &nats.Msg{Subject: reply, Header: h, Data: e.Data}
}

// parseErrorReply returns the error of an error reply, nil if m is not one.
func parseErrorReply(m *nats.Msg) *api.Error {
	code := m.Header.Get(subjects.HeaderErrorCode)
	if code == "" {
		return nil
	}
	ms, _ := strconv.ParseInt(m.Header.Get(subjects.HeaderRetryAfter), 10, 64) // absent or malformed: 0, unknown
	return &api.Error{Code: code, Text: m.Header.Get(subjects.HeaderError), RetryAfter: time.Duration(max(ms, 0)) * time.Millisecond, Data: m.Data}
}

// ErrorText returns err for a user, with a deadline in plain words.
func ErrorText(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	return err.Error()
}
