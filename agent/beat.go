package agent

import (
	"context"
	"time"

	"yardmaster/job"
)

// beat tells the authority every second, and at once after a change of
// authority, that this node lives.
func (a *Agent) beat(ctx context.Context) {
	again := time.NewTimer(a.cfg.BeatEvery)
	defer again.Stop()
	for { // one beat serves all who have asked for it before
		again.Reset(a.cfg.BeatEvery)
		closed(a.beatNow)
		changed := a.bus.AuthorityChanged()
		if node, epoch, ok := a.bus.Authority(); ok {
			a.beatOnce(ctx, node, epoch)
		}
		select {
		case <-again.C:
		case <-a.beatNow:
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// beatOnce sends one beat. Its answer lends working time from before it was
// sent, so that the lease never outlasts what the authority counts.
func (a *Agent) beatOnce(ctx context.Context, node string, epoch uint64) {
	a.mu.Lock()
	a.sees(epoch)
	b := job.Beat{
		Node: a.cfg.Node, Incarnation: a.cfg.Incarnation, Rev: a.room.told,
		Running: a.table.running, Draining: a.draining, Runners: a.cfg.Runners, Edge: a.cfg.Edge,
	}
	a.mu.Unlock()
	b.Lanes = a.cfg.Lanes()
	ctx, cancel := context.WithTimeout(ctx, a.cfg.BeatEvery)
	defer cancel()
	sent := time.Now()
	b.At = sent
	ack, err := a.bus.Beat(ctx, node, b)
	if err != nil {
		a.log.Debug("beat not answered", "authority", node, "error", err)
		return
	}
	a.lapse() // a node that was frozen may hear this before it has looked at its lease
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.sees(ack.Epoch) {
		return // of an authority that has been replaced
	}
	if a.over() {
		return // just now: the next beat is for a new lease
	}
	if len(ack.Edges) > 0 { // an authority that is new has not heard the others yet
		a.edges = ack.Edges
	}
	if until := sent.Add(ack.Lease); until.After(a.lease) {
		a.lease = until
		notice(a.leased)
	}
	if a.stopped && time.Now().Before(a.lease) {
		a.stopped, a.former = false, former{ack.Epoch, ack.Batches}
		a.room.forgotten()
		a.log.Info("working again under a new lease")
	}
	if ack.WantFull {
		a.room.forgotten()
	}
	notice(a.wake)
}

// Edges are where clients may go instead of here: the addresses of the other
// nodes that take work, as of the last beat whose answer named any.
func (a *Agent) Edges() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.edges
}

// watchLease stops all work when the lease runs out. It looks again at every new
// one: the first, or the next after one that ran out, may be far shorter than it
// would sleep, if the authority's own is nearly over.
func (a *Agent) watchLease(ctx context.Context) {
	for {
		a.mu.Lock()
		wait := a.cfg.BeatEvery
		if left := time.Until(a.lease); left > 0 {
			wait = left
		}
		a.mu.Unlock()
		a.lapse()
		select {
		case <-time.After(wait):
		case <-a.leased:
		case <-ctx.Done():
			return
		}
	}
}

// lapse stops all work if the lease has run out.
func (a *Agent) lapse() {
	a.mu.Lock()
	over := a.over()
	if over {
		a.stopped = true
	}
	a.mu.Unlock()
	if over {
		a.log.Warn("no answer from the authority within the lease: stopping all work", "running", a.Running())
		a.stopAll(job.RecallLease)
	}
}

// over tells that the lease has run out and the work is not stopped yet.
// Callers hold mu.
func (a *Agent) over() bool { return a.expired() && !a.stopped && !a.lease.IsZero() }

// former names the last batch of orders that may have been meant for a lease
// that has run out. Such orders may be on their way for as long as the node was
// frozen, and their authority has given them to others since.
type former struct{ epoch, batch uint64 }

func (f former) meant(b job.Batch) bool { return b.Epoch == f.epoch && b.Number <= f.batch }

// works tells whether this node may begin anything. Callers hold mu.
func (a *Agent) works() bool { return !a.stopped && !a.expired() }

// expired tells whether this node's working time is over. Callers hold mu.
func (a *Agent) expired() bool { return !time.Now().Before(a.lease) }
