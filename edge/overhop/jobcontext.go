package overhop

import (
	"context"
	"sync"
	"time"
)

// jobContext is the context of a handler. Most handlers return before anything waits for the
// end of their context, so it makes one of package context, with a channel and a timer, when
// that is first needed.
type jobContext struct {
	job      *activeJob
	parent   context.Context // of all handlers of the worker
	deadline time.Time       // zero: none

	mu     sync.Mutex
	made   context.Context         // nil until it is needed
	cancel context.CancelCauseFunc // ends made
	ended  bool                    // the handler has returned
}

// activeJobKey is the context key of a handler's *activeJob.
type activeJobKey struct{}

// Deadline implements [context.Context].
func (c *jobContext) Deadline() (deadline time.Time, ok bool) {
	return c.deadline, !c.deadline.IsZero()
}

// Done implements [context.Context].
func (c *jobContext) Done() <-chan struct{} { return c.make().Done() }

// Value implements [context.Context]. Package context finds the cause and the children of
// the context that make returns by it.
func (c *jobContext) Value(key any) any {
	if key == (activeJobKey{}) {
		return c.job
	}
	return c.make().Value(key)
}

// Err implements [context.Context].
func (c *jobContext) Err() error {
	c.mu.Lock()
	isOpen := c.made == nil && !c.ended
	c.mu.Unlock()
	isOverdue := !c.deadline.IsZero() && !time.Now().Before(c.deadline)
	if isOpen && !isOverdue && c.parent.Err() == nil {
		return nil
	}
	return c.make().Err()
}

// make returns the context of package context, which it makes if there is none yet.
func (c *jobContext) make() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made != nil {
		return c.made
	}
	c.made, c.cancel = context.WithCancelCause(c.parent)
	if !c.deadline.IsZero() {
		stop, release := c.cancel, context.CancelFunc(nil)
		c.made, release = context.WithDeadlineCause(c.made, c.deadline, &StopError{StopDeadline})
		c.cancel = func(cause error) {
			stop(cause)
			release()
		}
	}
	if c.ended {
		c.cancel(nil)
	}
	return c.made
}

// stop ends the context with a cause, unless it has ended.
func (c *jobContext) stop(cause error) {
	c.make()
	c.cancel(cause)
}

// end ends the context of a handler that has returned.
func (c *jobContext) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.cancel != nil {
		c.cancel(nil)
	}
}
