package backup

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
)

// sessionAnswerTimeout is how long a request about a session waits for what it asks
// for. A client gets an answer within this time, and so learns that the node is alive.
const sessionAnswerTimeout = 2 * time.Second

// session is work that a node does for a client over many requests: a backup or
// a restore. It ends when the client sends no more requests.
type session struct {
	id          string
	idleTimeout time.Duration // between requests; after it the client is considered gone
	ctx         context.Context
	cancel      context.CancelFunc

	mu          sync.Mutex
	lastRequest time.Time
	step        *sessionStep // the latest
	activity    string       // what the session does now, for the client
}

// sessionStep is a part of a session that may take longer than one reply.
type sessionStep struct {
	done chan struct{}
	err  error // set before done is closed
}

// newSession returns a session whose context ends with ctx.
func newSession(ctx context.Context, idle time.Duration) *session {
	sessionCtx, cancel := context.WithCancel(ctx)
	return &session{id: uuid.NewString(), idleTimeout: idle, ctx: sessionCtx, cancel: cancel, lastRequest: time.Now()}
}

// touch records a request of the client.
func (bs *session) touch() {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.lastRequest = time.Now()
}

// idle reports whether the client has sent no request for longer than idleTimeout.
func (bs *session) idle(now time.Time) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return now.Sub(bs.lastRequest) > bs.idleTimeout
}

// setActivity records what the session does now.
func (bs *session) setActivity(format string, v ...any) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	bs.activity = fmt.Sprintf(format, v...)
}

// currentActivity returns what the session does now.
func (bs *session) currentActivity() string {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.activity
}

// lastStep returns the latest step, or nil if there was none.
func (bs *session) lastStep() *sessionStep {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	return bs.step
}

// startStep makes fn the session's current step and passes it to spawn, which must run
// it in the background. It returns false and does nothing while another step runs.
func (bs *session) startStep(spawn func(func() error), fn func(context.Context) error) bool {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	if bs.step != nil && !bs.step.finished() {
		return false
	}
	s := &sessionStep{done: make(chan struct{})}
	bs.step = s
	spawn(func() error {
		defer close(s.done)
		s.err = fn(bs.ctx)
		return nil
	})
	return true
}

// finished reports whether the step has ended.
func (s *sessionStep) finished() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// wait waits up to sessionAnswerTimeout for a step to end and returns its error.
// running reports that it has not.
func (s *sessionStep) wait(ctx context.Context) (running bool, err error) {
	timeout := time.NewTimer(sessionAnswerTimeout)
	defer timeout.Stop()
	select {
	case <-s.done:
		return false, s.err
	case <-timeout.C:
	case <-ctx.Done():
	}
	return true, nil
}
