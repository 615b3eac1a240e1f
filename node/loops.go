package node

import (
	"context"

	"golang.org/x/sync/errgroup"
)

// loopGroup is a group of loops that runs until stop is called. The end of the
// node's context does not stop it.
type loopGroup struct {
	group  *errgroup.Group
	ctx    context.Context // ends when a loop fails
	cancel context.CancelFunc
}

// newLoopGroup returns a group with the values of ctx, but not its end.
func newLoopGroup(ctx context.Context) *loopGroup {
	groupCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	group, groupCtx := errgroup.WithContext(groupCtx)
	return &loopGroup{group, groupCtx, cancel}
}

// Go starts loop.
func (g *loopGroup) Go(loop func(context.Context) error) {
	g.group.Go(func() error { return loop(g.ctx) })
}

// stop cancels the loops and waits for them.
func (g *loopGroup) stop() error {
	g.cancel()
	return g.group.Wait()
}
