package cluster

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"

	"github.com/nats-io/nats.go"
)

// APIError is an error sent to clients: a code for programs and a text
// for people. The codes are those of HTTP:
//
//	400 the request is malformed         409 it conflicts with the current state
//	404 the object does not exist        410 the ledger no longer has it
//	413 the request or reply is too large
//	408 the outcome did not arrive in time
//	429 the rate limit key is held; RetryAfter is until it is free
//	500 this node failed                 503 unavailable; retry after RetryAfter
//	504 unknown whether it was done: repeat it under the same key
type APIError struct {
	Code       string
	Text       string
	RetryAfter time.Duration // 0: unknown
	Data       []byte        // JSON that accompanies the error; nil: none
}

func (e *APIError) Error() string { return fmt.Sprintf("%s (%s)", e.Text, e.Code) }

// AsAPIError returns err as an [*APIError], with a code that depends on its kind;
// the default is 500.
func AsAPIError(err error) *APIError {
	var (
		apiErr      *APIError
		invalid     *job.InvalidError
		unavailable *job.UnavailableError
		limited     *job.RateLimitedError
	)
	switch {
	case errors.As(err, &apiErr):
		return apiErr
	case errors.Is(err, ErrUnknown):
		return &APIError{Code: "504", Text: err.Error(), RetryAfter: time.Second}
	case errors.As(err, &unavailable):
		return &APIError{Code: "503", Text: err.Error(), RetryAfter: unavailable.RetryAfter}
	case errors.As(err, &limited):
		return &APIError{Code: "429", Text: err.Error(), RetryAfter: limited.RetryAfter}
	case errors.Is(err, job.ErrTooLarge):
		return &APIError{Code: "413", Text: err.Error()}
	case errors.As(err, &invalid), isAny(err, job.ErrBadQueueName, job.ErrBadID, job.ErrKeyTooLong):
		return &APIError{Code: "400", Text: err.Error()}
	case isAny(err, job.ErrQueueNotFound, job.ErrJobNotFound, ErrNotStored):
		return &APIError{Code: "404", Text: err.Error()}
	case isAny(err, job.ErrQueueExists, job.ErrQueueNotEmpty, job.ErrQueuePaused, job.ErrQueueNotPaused, job.ErrSystemQueue,
		job.ErrNotRemovable, job.ErrMalformed, job.ErrNotFailed, job.ErrNotActive, job.ErrJobEnded, job.ErrLeaseLost,
		ledger.ErrBackupRunning, ledger.ErrNotFresh, ledger.ErrNotRestoring, ledger.ErrRestoreIncomplete, ledger.ErrMembersChanging):
		return &APIError{Code: "409", Text: err.Error()}
	}
	return &APIError{Code: "500", Text: err.Error()}
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
func errorReply(reply, node string, e *APIError) *nats.Msg {
	h := nats.Header{headerError: []string{e.Text}, headerErrorCode: []string{e.Code}, HeaderNode: []string{node}}
	if e.RetryAfter > 0 {
		h[HeaderRetryAfter] = []string{strconv.FormatInt(e.RetryAfter.Milliseconds(), 10)}
	}
	return &nats.Msg{Subject: reply, Header: h, Data: e.Data}
}

// parseErrorReply returns the error of an error reply, nil if m is not one.
func parseErrorReply(m *nats.Msg) *APIError {
	code := m.Header.Get(headerErrorCode)
	if code == "" {
		return nil
	}
	ms, _ := strconv.ParseInt(m.Header.Get(HeaderRetryAfter), 10, 64) // absent or malformed: 0, unknown
	return &APIError{Code: code, Text: m.Header.Get(headerError), RetryAfter: time.Duration(max(ms, 0)) * time.Millisecond, Data: m.Data}
}
