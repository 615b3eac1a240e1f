package node

import (
	"context"
	"net"
	"sync"

	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/boards"
)

// runBase starts the loops that the others depend on, and those that monitor the node
// itself.
func (n *Node) runBase(g *loopGroup, edge net.Listener) {
	for _, loop := range []func(context.Context) error{
		n.cluster.Run, n.member.Run, n.notifier.Run, n.waiters.Run, n.backups.Run, n.runners.Run, n.drainer.Run,
	} {
		g.Go(loop)
	}
	g.Go(func(ctx context.Context) error { return n.authority.Run(ctx, n.raft) })
	g.Go(func(ctx context.Context) error {
		return laneIdentities{n.raft}.follow(ctx, n.cluster.Publisher, &n.queuesFull)
	})
	g.Go(func(ctx context.Context) error { return n.fleet.Serve(ctx, n.handlers()) })
	g.Go(func(ctx context.Context) error { return n.edge.Serve(ctx, edge) })
	g.Go(n.index.Run)
	g.Go(n.deadLetters.Run)
	g.Go(n.monitor.Run)
	g.Go(n.resumeJetStream)
	g.Go(n.consistency.Run)
	g.Go(n.chronicle.Run)
	g.Go(n.recordStart)
	g.Go(func(ctx context.Context) error { return certs.Watch(ctx, n.certs.stores(n.edge)) })
}

// recordStart adds to the history that this node has started, and with which version, so that a
// deployment can be seen there. The first level that has such events must be in force.
func (n *Node) recordStart(ctx context.Context) error {
	recordable := func(l *ledger.Ledger) bool { return l.StreamsCreated() && l.Level() > 0 }
	if n.waiters.Wait(ctx, recordable) != nil { // the node stops
		return nil
	}
	if err := n.proposer.RecordEvent(ctx, "node.start", n.cfg.Node.Name, "version "+n.version); err != nil && ctx.Err() == nil {
		n.log.Warn("start of the node not recorded in the history", "err", err)
	}
	return nil
}

// runTenure runs this node's scheduler for one Raft term as leader, with the board
// updater, the membership reconciler and the operations on jobs. Those start when the streams exist, so
// that they do not delay the first start of a cluster, and end with the scheduler.
func (n *Node) runTenure(ctx context.Context, term uint64) error {
	loops := []func(context.Context){
		func(ctx context.Context) {
			boards.Run(ctx, boards.Config{
				Node: n.cfg.Node.Name, Boards: n.cluster.Boards, View: n.raft.View, Raft: n.raft.Status,
				Status: n.scheduler.Status, Reporter: n.reporter, Log: n.log,
			})
		},
		n.operationRunner().Run,
	}
	if n.cfg.Clustered() {
		loops = append(loops, n.member.Reconcile)
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, loop := range loops {
		running.Go(func() {
			if n.waiters.Wait(ctx, (*ledger.Ledger).StreamsCreated) == nil {
				loop(ctx)
			}
		})
	}
	defer running.Wait()
	defer cancel()
	return n.scheduler.Run(ctx, term)
}
