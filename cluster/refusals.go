package cluster

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"

	"github.com/nats-io/nats.go"
)

// APIError is a refusal as it travels: a code that programs read and a text
// that people read. Codes are HTTP's:
//
//	400 what was asked is malformed      409 it contradicts what is there
//	404 what was named does not exist    410 it is forgotten
//	413 it is too large
//	408 it takes longer than was waited for
//	429 its rate limit key is held; RetryAfter says how long
//	500 this node failed                 503 later; RetryAfter says when
//	504 unknown whether it was done: repeat it under the same key
type APIError struct {
	Code       string
	Text       string
	RetryAfter time.Duration // 0: not known
	Data       []byte        // JSON of what is known all the same; nil: nothing
}

func (e *APIError) Error() string { return fmt.Sprintf("%s (%s)", e.Text, e.Code) }

// RefusalOf finds the code of an error.
func RefusalOf(err error) *APIError {
	var (
		given       *APIError
		invalid     *job.InvalidError
		unavailable *job.UnavailableError
		limited     *job.LimitedError
	)
	switch {
	case errors.As(err, &given):
		return given
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
	case isAny(err, job.ErrQueueExists, job.ErrQueueNotEmpty, job.ErrQueuePaused, job.ErrQueueRunning, job.ErrSystemQueue,
		job.ErrNotRemovable, job.ErrMalformed, job.ErrNotFailed, job.ErrNotActive, job.ErrJobEnded, job.ErrLeaseLost,
		ledger.ErrHeld, ledger.ErrNotFresh, ledger.ErrBringSeat, ledger.ErrBringPart, ledger.ErrMembersChanging):
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

// errorReply is an error in NATS's convention for services.
func errorReply(reply, node string, e *APIError) *nats.Msg {
	h := nats.Header{headerError: []string{e.Text}, headerErrorCode: []string{e.Code}, HeaderNode: []string{node}}
	if e.RetryAfter > 0 {
		h[HeaderRetryAfter] = []string{strconv.FormatInt(e.RetryAfter.Milliseconds(), 10)}
	}
	return &nats.Msg{Subject: reply, Header: h, Data: e.Data}
}

// errorOf reads such an error; nil if the message is none.
func errorOf(m *nats.Msg) *APIError {
	code := m.Header.Get(headerErrorCode)
	if code == "" {
		return nil
	}
	ms, _ := strconv.ParseInt(m.Header.Get(HeaderRetryAfter), 10, 64) // absent or odd: not known
	return &APIError{Code: code, Text: m.Header.Get(headerError), RetryAfter: time.Duration(max(ms, 0)) * time.Millisecond, Data: m.Data}
}
