package node

import (
	"context"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
)

// loopGroup is a group of loops that runs until stop is called. The end of the
// node's context does not stop it.
type loopGroup struct {
	group  *errgroup.Group
	ctx    context.Context // ends when a loop fails
	cancel context.CancelFunc
	log    *slog.Logger
}

// newLoops returns a group with the values of ctx, but not its end.
func (n *Node) newLoops(ctx context.Context) *loopGroup {
	groupCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	group, groupCtx := errgroup.WithContext(groupCtx)
	return &loopGroup{group, groupCtx, cancel, n.log}
}

// Go starts loop. A panic of it ends the process, and is logged before: where it left the
// node's state is not known. The group goes on waiting for such a loop, or the process could
// end with another status while the runtime writes the trace.
func (g *loopGroup) Go(loop func(context.Context) error) {
	g.group.Go(func() error {
		ended := make(chan error, 1)
		go func() {
			defer func() {
				if cause := recover(); cause != nil {
					g.log.Error(stopMessage, "err", fmt.Sprint("panic: ", cause))
					panic(cause) // with the stack of its origin
				}
			}()
			ended <- loop(g.ctx)
		}()
		return <-ended
	})
}

// stop cancels the loops and waits for them.
func (g *loopGroup) stop() error {
	g.cancel()
	return g.group.Wait()
}
