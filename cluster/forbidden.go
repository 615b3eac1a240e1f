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

// ForbiddenError: the user that the client named may not do what was asked.
type ForbiddenError struct{ Subject string }

func (e *ForbiddenError) Error() string { return "this user may not use " + e.Subject }

// forbidden hears what a server refuses. It says so beside the answers: who is
// waiting for one would do so in vain.
type forbidden struct {
	mu      sync.Mutex
	waiting map[*func(subject string)]struct{}
}

// theSubject is quoted in the server's refusal.
var theSubject = regexp.MustCompile(`(?:Publish|Subscription) to "([^"]+)"`)

// hear takes what the library tells of a connection. What is no refusal goes
// where the library puts it by itself.
func (f *forbidden) hear(_ *nats.Conn, _ *nats.Subscription, err error) {
	match := theSubject.FindStringSubmatch(err.Error())
	if !errors.Is(err, nats.ErrPermissionViolation) || match == nil {
		fmt.Fprintln(os.Stderr, err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for tell := range f.waiting {
		(*tell)(match[1])
	}
}

// watch gives a context that ends with a [*ForbiddenError] as its cause when a
// subject that begins so is refused, or the inbox for answers. Who has called it
// calls done, which makes an error of that cause.
func (f *forbidden) watch(ctx context.Context, prefix string) (watched context.Context, done func(error) error) {
	watched, cancel := context.WithCancelCause(ctx)
	tell := func(subject string) {
		if strings.HasPrefix(subject, prefix) || strings.HasPrefix(subject, "_INBOX") {
			cancel(&ForbiddenError{subject})
		}
	}
	f.mu.Lock()
	if f.waiting == nil {
		f.waiting = make(map[*func(string)]struct{})
	}
	f.waiting[&tell] = struct{}{}
	f.mu.Unlock()
	return watched, func(err error) error {
		f.mu.Lock()
		delete(f.waiting, &tell)
		f.mu.Unlock()
		refusal := (*ForbiddenError)(nil)
		if errors.As(context.Cause(watched), &refusal) {
			err = refusal
		}
		cancel(nil)
		return err
	}
}
