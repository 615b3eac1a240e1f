package agent

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// heartbeatLoop sends a heartbeat every heartbeat interval, and at once after a
// change of authority or a signal on heartbeatNow, until ctx ends.
func (a *Agent) heartbeatLoop(ctx context.Context) {
	timer := time.NewTimer(a.cfg.heartbeatInterval)
	defer timer.Stop()
	for { // one heartbeat answers all signals before it
		timer.Reset(a.cfg.heartbeatInterval)
		tryReceive(a.heartbeatNow)
		changed := a.transport.AuthorityChanged()
		if node, epoch, ok := a.transport.Authority(); ok {
			a.sendHeartbeat(ctx, node, epoch)
		}
		select {
		case <-timer.C:
		case <-a.heartbeatNow:
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// sendHeartbeat sends one heartbeat to the node that holds the authority in epoch, and
// handles the acknowledgement. That extends this node's lease, counted from before the
// heartbeat was sent, so that the lease ends here before the authority assumes so. A
// heartbeat that is not acknowledged is not repeated: the next one is sent soon.
func (a *Agent) sendHeartbeat(ctx context.Context, node string, epoch uint64) {
	a.mu.Lock()
	a.observeEpoch(epoch)
	heartbeat := job.Heartbeat{
		Node: a.cfg.Node, Incarnation: a.cfg.Incarnation, Rev: a.reporter.ackedRev(),
		Running: a.table.running, Draining: a.draining, Runners: a.cfg.Runners, Edge: a.cfg.Edge,
	}
	if epoch == a.epoch && len(a.table.live) <= job.MaxListedDispatches {
		heartbeat.Epoch, heartbeat.AckSeq = epoch, a.ackSeq
		heartbeat.Dispatches = slices.AppendSeq(make([]job.DispatchID, 0, len(a.table.live)), maps.Keys(a.table.live))
	}
	a.mu.Unlock()

	heartbeat.Elapsed, heartbeat.ElapsedEpoch = a.elapsed.now()
	heartbeat.Lanes = a.cfg.LedLanes()
	ctx, cancel := context.WithTimeout(ctx, a.cfg.heartbeatInterval)
	defer cancel()
	sent := time.Now()
	heartbeat.At = sent
	ack, err := a.transport.Heartbeat(ctx, node, heartbeat)
	if err != nil {
		a.log.Debug("heartbeat not acknowledged", "authority", node, "err", err)
		return
	}

	if !ack.Elapsed.IsZero() && ack.Epoch >= a.elapsed.epoch { // else what an earlier authority sent goes on
		a.elapsed = elapsedTime{received: ack.Elapsed, receivedAt: time.Now(), epoch: ack.Epoch}
	}
	a.checkLease() // first: if the node was frozen, watchLease may not have run since the lease expired
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.observeEpoch(ack.Epoch) {
		return // the authority has been replaced
	}
	a.ackSeq = max(a.ackSeq, ack.Seq)
	if a.lease.justExpired() {
		return // it expired since checkLease: the next heartbeat gets a new lease
	}
	if len(ack.Edges) > 0 { // a new authority has no heartbeats of the other nodes yet
		a.otherEdges = ack.Edges
	}
	if until := sent.Add(ack.Lease); until.After(a.lease.until) {
		a.lease.until = until
		signal(a.leaseRenewed)
	}
	if a.lease.suspended && !a.lease.expired() {
		a.lease.suspended, a.lease.previous = false, previousLease{ack.Epoch, ack.LastBatch}
		a.reporter.update((*capacity).resendAll)
		a.log.Info("lease granted again, accepting work")
	}
	if ack.WantFull {
		a.reporter.update((*capacity).resendAll)
	}
	signal(a.reporter.wake)
}

// elapsedTime is the elapsed time of the ledger, see [job.HeartbeatAck], as this node keeps it since an
// authority last sent it. It belongs to the goroutine of the heartbeats.
type elapsedTime struct {
	received   time.Time // the elapsed time in the acknowledgement; zero: the authority sent none
	receivedAt time.Time // when the acknowledgement arrived, by this node's clock
	epoch      uint64    // of the authority
}

// now returns the present elapsed time, and the epoch of the authority that sent it.
func (e elapsedTime) now() (time.Time, uint64) {
	if e.received.IsZero() {
		return time.Time{}, 0
	}
	return e.received.Add(time.Since(e.receivedAt)), e.epoch
}

// Edges returns the edge addresses of the other available nodes, to which clients may
// connect instead: those in the last acknowledged heartbeat that had any.
func (a *Agent) Edges() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.otherEdges
}

// watchLease stops all work when the lease expires. It checks again at every new
// lease: the first one, or the one after an expired one, may be far shorter than
// the heartbeat interval, if the authority's own lease is nearly over.
func (a *Agent) watchLease(ctx context.Context) {
	for {
		a.mu.Lock()
		wait := a.cfg.heartbeatInterval
		if remaining := time.Until(a.lease.until); remaining > 0 {
			wait = remaining
		}
		a.mu.Unlock()
		a.checkLease()
		select {
		case <-time.After(wait):
		case <-a.leaseRenewed:
		case <-ctx.Done():
			return
		}
	}
}

// checkLease stops all work if the lease has expired.
func (a *Agent) checkLease() {
	a.mu.Lock()
	expired := a.lease.justExpired()
	if expired {
		a.lease.suspended = true
	}
	a.mu.Unlock()
	if expired {
		a.log.Warn("lease expired, stopping all work", "count", a.Running())
		a.stopAll(job.RecallLease)
	}
}

// WorkerLease returns the end of a lease that a worker asks for until the given
// time: that time, or the end of the node's own lease if that is earlier. After its
// own lease has expired, the node cannot stop a worker that has lost its
// connection, and the authority may start the job on another node. WorkerLease may
// be called with a target's locks held.
func (a *Agent) WorkerLease(until time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.lease.until.Before(until) {
		return a.lease.until
	}
	return until
}

// lease is this node's permission to work. It is guarded by the agent's mu.
type lease struct {
	until     time.Time     // zero: no lease yet
	suspended bool          // it expired and the work was stopped
	previous  previousLease // the assignments of the lease that expired
}

// canWork reports whether this node may start dispatches.
func (l *lease) canWork() bool { return !l.suspended && !l.expired() }

// expired reports whether there is no lease or it has expired.
func (l *lease) expired() bool { return !time.Now().Before(l.until) }

// justExpired reports whether the lease has expired and the work is not stopped
// yet.
func (l *lease) justExpired() bool { return l.expired() && !l.suspended && !l.until.IsZero() }

// previousLease identifies the last batch of assignments that may have been meant for
// a lease that has expired. Such a batch may have been delayed for as long as the
// node was frozen, and its authority may have placed the jobs elsewhere since.
type previousLease struct{ epoch, batch uint64 }

// covers reports whether a batch may have been meant for the expired lease.
func (l previousLease) covers(b job.AssignmentBatch) bool {
	return b.Epoch == l.epoch && b.Number <= l.batch
}
