package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/internal/usercode"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Permanent wraps an error so that the job fails without another attempt. It returns nil for
// nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &failure{err: err, final: true}
}

// RetryAfter returns an error that fails the attempt and starts the next one after d, at most
// the cluster's longest delay between attempts, an hour by default. Wrap it to say why:
//
//	return nil, fmt.Errorf("the server is busy: %w", client.RetryAfter(time.Minute))
//
// If d is negative or above ten years, the delay is that of the job's policy, and the error
// says so.
func RetryAfter(d time.Duration) error {
	if err := checkDelay("RetryAfter", d); err != nil {
		return err
	}
	return &failure{err: fmt.Errorf("retry after %s", duration.Format(d)), retryAfter: &d}
}

// checkDelay returns an error unless d is a delay that the cluster accepts.
func checkDelay(function string, d time.Duration) error {
	if d < 0 || d > job.MaxDuration {
		return fmt.Errorf("client.%s(%s): the delay is 0 to ten years", function, duration.Format(d))
	}
	return nil
}

// Snooze returns an error that gives the attempt back, which does not count, and starts
// another one after d, at most ten years; 0 is one second, so that a job that is not ready does
// not start again at once. Wrap it to say why. Nodes of older releases count the attempt as
// failed; so does any node if d is out of range.
func Snooze(d time.Duration) error {
	if err := checkDelay("Snooze", d); err != nil {
		return err
	}
	if d < time.Millisecond {
		d = time.Second
	}
	return &failure{err: fmt.Errorf("snooze for %s", duration.Format(d.Round(time.Millisecond))), snooze: &d}
}

// Coded wraps an error so that the job's error has a code and details for programs. The
// details are encoded like a result; nil means none. It may be combined with the others. It
// returns nil for a nil err.
func Coded(err error, code string, details any) error {
	if err == nil {
		return nil
	}
	return &failure{err: err, code: code, details: details}
}

// failure is a handler's error, what is to happen to the job, and what describes the error
// to programs.
type failure struct {
	err        error
	final      bool           // no further attempt
	retryAfter *time.Duration // nil: the retry policy decides
	snooze     *time.Duration // nil: the attempt has failed
	code       string
	details    any
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// protocolError converts an error that is or wraps what [Permanent] and the other functions
// return to the protocol's; of two that contradict each other, the outermost counts. It
// returns any other error unchanged. Details that cannot be encoded are replaced by the
// reason.
func protocolError(err error) error {
	f, ok := usercode.As[*failure](err)
	if !ok {
		return err
	}
	sent := &overhop.FailError{Message: usercode.Text(err)}
	for ; ok; f, ok = usercode.As[*failure](f.err) {
		if sent.RetryAfter == nil && sent.Snooze == nil && !sent.Final {
			sent.RetryAfter, sent.Snooze, sent.Final = f.retryAfter, f.snooze, f.final
		}
		sent.Code = cmp.Or(sent.Code, f.code)
		if f.details == nil || sent.Details != nil {
			continue
		}
		details, err := overhop.Marshal(f.details)
		if err != nil {
			details, _ = overhop.Marshal("details cannot be encoded: " + err.Error())
		}
		sent.Details = details
	}
	return sent
}

// Reasons why a handler must stop, for errors.Is with the cause of its context. A [JobError]
// is ErrCancelled or ErrDeadline if the job ended for that reason.
var (
	ErrCancelled = overhop.ErrJobCancelled
	ErrDeadline  = overhop.ErrJobDeadline
	ErrLeaseLost = overhop.ErrJobLeaseLost
	ErrStopping  = overhop.ErrJobStopping
)

// StopReason returns why the context of a handler has ended: [ErrCancelled], [ErrDeadline],
// [ErrLeaseLost] or [ErrStopping]. It returns nil while the handler may go on, and the
// cause of ctx if that is another one.
func StopReason(ctx context.Context) error {
	cause := context.Cause(ctx)
	for _, reason := range []error{ErrCancelled, ErrDeadline, ErrLeaseLost, ErrStopping} {
		if errors.Is(cause, reason) {
			return reason
		}
	}
	return cause
}
