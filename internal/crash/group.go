package crash

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/internal/usercode"
)

// Group is an [errgroup.Group] for goroutines that do a part of their caller's work. A panic of one
// is repeated by Wait, so that it ends what a panic of the caller would end. The zero Group is ready
// for use, without a limit and a context.
type Group struct {
	work  errgroup.Group
	cause atomic.Pointer[string] // of the first panic, with its stack; nil: none
}

// WithContext returns a group and a context that ends when a function of the group fails or panics,
// and when Wait returns.
func WithContext(ctx context.Context) (*ContextGroup, context.Context) {
	ctx, cancel := context.WithCancelCause(ctx)
	return &ContextGroup{cancel: cancel}, ctx
}

// ContextGroup is a [Group] with a context.
type ContextGroup struct {
	Group
	cancel context.CancelCauseFunc
}

// SetLimit limits the number of goroutines; see [errgroup.Group.SetLimit].
func (g *Group) SetLimit(n int) { g.work.SetLimit(n) }

// Go calls f in a goroutine. It blocks while the group is at its limit.
func (g *Group) Go(f func() error) { g.work.Go(func() error { return g.call(f) }) }

// Run calls f, which cannot fail, in a goroutine.
func (g *Group) Run(f func()) { g.Go(func() error { f(); return nil }) }

// call calls f and records its panic.
func (g *Group) call(f func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			text := fmt.Sprintf("%s\n\n%s", usercode.PanicText(cause), debug.Stack())
			g.cause.CompareAndSwap(nil, &text)
			err = errPanicked
		}
	}()
	return f()
}

var errPanicked = fmt.Errorf("a goroutine of the group has panicked")

// Wait blocks until all goroutines have ended and returns the first error. It panics if one of them
// has. The value of the panic has the stack of the goroutine.
func (g *Group) Wait() error {
	err := g.work.Wait()
	if cause := g.cause.Load(); cause != nil {
		panic(*cause)
	}
	return err
}

// Go is [Group.Go]; an error or a panic of f ends the context.
func (g *ContextGroup) Go(f func() error) {
	g.Group.Go(func() error {
		err := g.call(f)
		if err != nil {
			g.cancel(err)
		}
		return err
	})
}

// Wait is [Group.Wait], and ends the context.
func (g *ContextGroup) Wait() error {
	defer g.cancel(nil)
	return g.Group.Wait()
}
