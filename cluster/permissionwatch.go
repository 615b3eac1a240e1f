package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// ForbiddenError means that the client's user lacks the permission for a subject.
type ForbiddenError struct{ Subject string }

func (e *ForbiddenError) Error() string { return "this user may not use " + e.Subject }

// permissionWatch receives a connection's permission errors. The server reports
// them asynchronously and sends no reply to the request, so a caller would wait in
// vain.
type permissionWatch struct {
	mu       crash.Mutex
	requests map[*watchedRequest]struct{} // in progress
}

// watchedRequest is a request that is cancelled if a subject with this prefix is
// refused.
type watchedRequest struct {
	prefix string
	cancel context.CancelCauseFunc
}

// deniedSubject matches the subject in the server's error text.
var deniedSubject = regexp.MustCompile(`(?:Publish|Subscription) to "([^"]+)"`)

// onError is the connection's error handler. It cancels the requests that a permission
// error concerns. Other errors are printed to stderr, as the library does by default.
func (w *permissionWatch) onError(_ *nats.Conn, _ *nats.Subscription, err error) {
	match := deniedSubject.FindStringSubmatch(err.Error())
	if !errors.Is(err, nats.ErrPermissionViolation) || match == nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	subject := match[1]
	w.mu.Lock()
	defer w.mu.Unlock()
	for request := range w.requests {
		if strings.HasPrefix(subject, request.prefix) || strings.HasPrefix(subject, "_INBOX") {
			request.cancel(&ForbiddenError{subject})
		}
	}
}

// watch returns a context for a request, which is cancelled with a [*ForbiddenError] as
// its cause if a subject with this prefix, or the inbox, is refused. The caller must
// call done with the error of the request; done returns the cause if there is one, and
// otherwise the error it was given.
func (w *permissionWatch) watch(ctx context.Context, prefix string) (watched context.Context, done func(error) error) {
	watched, cancel := context.WithCancelCause(ctx)
	request := &watchedRequest{prefix, cancel}
	w.mu.Lock()
	w.requests[request] = struct{}{}
	w.mu.Unlock()
	return watched, func(err error) error {
		w.mu.Lock()
		delete(w.requests, request)
		w.mu.Unlock()
		if forbidden, ok := errors.AsType[*ForbiddenError](context.Cause(watched)); ok {
			err = forbidden
		}
		cancel(nil)
		return err
	}
}
