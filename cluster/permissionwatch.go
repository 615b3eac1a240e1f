package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// ForbiddenError means that the client's user lacks the permission for a subject.
type ForbiddenError struct{ Subject string }

func (e *ForbiddenError) Error() string { return "this user may not use " + e.Subject }

// permissionWatch receives a connection's permission errors. The server reports
// them asynchronously and sends no reply to the request, so a caller would wait in
// vain.
type permissionWatch struct {
	mu       sync.Mutex
	watchers map[*func(subject string)]struct{}
}

// deniedSubject matches the subject in the server's error text.
var deniedSubject = regexp.MustCompile(`(?:Publish|Subscription) to "([^"]+)"`)

// onError is the connection's error handler. Other errors are printed to stderr,
// as the library does by default.
func (w *permissionWatch) onError(_ *nats.Conn, _ *nats.Subscription, err error) {
	match := deniedSubject.FindStringSubmatch(err.Error())
	if !errors.Is(err, nats.ErrPermissionViolation) || match == nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for notify := range w.watchers {
		(*notify)(match[1])
	}
}

// watch returns a context that is cancelled with a [*ForbiddenError] as its cause
// if a subject with this prefix, or the inbox, is refused. The caller must call
// done with its result; done returns that cause if there is one, and otherwise the
// error it was given.
func (w *permissionWatch) watch(ctx context.Context, prefix string) (watched context.Context, done func(error) error) {
	watched, cancel := context.WithCancelCause(ctx)
	notify := func(subject string) {
		if strings.HasPrefix(subject, prefix) || strings.HasPrefix(subject, "_INBOX") {
			cancel(&ForbiddenError{subject})
		}
	}
	w.mu.Lock()
	if w.watchers == nil {
		w.watchers = make(map[*func(string)]struct{})
	}
	w.watchers[&notify] = struct{}{}
	w.mu.Unlock()
	return watched, func(err error) error {
		w.mu.Lock()
		delete(w.watchers, &notify)
		w.mu.Unlock()
		forbidden := (*ForbiddenError)(nil)
		if errors.As(context.Cause(watched), &forbidden) {
			err = forbidden
		}
		cancel(nil)
		return err
	}
}
