package edge

import (
	"context"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// worker is a client as a receiver of jobs: its subscriptions, the jobs that it
// runs, and whether it works on them. Every connection has one. All fields from
// id on are guarded by deliveries.mu.
type worker struct {
	conn       *conn
	deliveries *deliveries

	id         string    // empty: not registered; constant afterwards
	registered time.Time // constant afterwards
	subs       map[string]*subscription
	byQueue    map[string]*subscription
	jobs       map[*dispatch]struct{} // dispatched to this worker and not settled
	draining   bool                   // GOODBYE was received: no more jobs
	drained    bool                   // by an operator: no more jobs until it is resumed
	closed     bool

	stallCount   int  // number of reasons to treat the worker as stalled
	leaseExpired bool // one of them: a job's lease expired
	resumed      bool // it was reported that the worker resumed jobs of another connection
}

// congestionChanged updates the worker's offers after conn.out.congested has
// changed. Calls may arrive late, so the present value counts.
func (w *worker) congestionChanged() {
	w.deliveries.mu.Lock()
	defer w.deliveries.unlock()
	w.offersChanged()
}

// offersChanged records that the offers of all subscriptions may have changed.
func (w *worker) offersChanged() {
	for _, sub := range w.subs {
		sub.changed()
	}
}

// A worker stalls when a QUEST is not acknowledged in time, or when a job's
// lease expires. It has recovered when no such reason is left. The executor is
// called with deliveries.mu held, so that it sees the changes in order.

// stall takes all credits from a subscription: it is sent no more jobs until
// its next CREDIT.
func (sub *subscription) stall() {
	sub.credits = 0
	sub.changed()
	if !sub.stalled && !sub.closed {
		sub.stalled = true
		sub.worker.stall(job.StalledAck)
	}
}

func (sub *subscription) revive(recovery string) {
	if sub.stalled {
		sub.stalled = false
		sub.worker.revive(recovery)
	}
}

// noteLeaseExpired records that a dispatch's lease expired. A worker whose
// connection is gone cannot recover: it would return under another id.
func (ds *deliveries) noteLeaseExpired(d *dispatch) {
	switch w := d.worker; {
	case w == nil:
		ds.executor.Stalled(channel(d.lastWorkerID), job.StalledLease)
	case !w.leaseExpired:
		w.leaseExpired = true
		w.stall(job.StalledLease)
	}
}

// noteAlive records that a worker sends messages about jobs again.
func (w *worker) noteAlive() {
	if w.leaseExpired {
		w.leaseExpired = false
		w.revive(job.RecoveredAlive)
	}
}

func (w *worker) stall(reason string) {
	if w.stallCount++; w.stallCount == 1 {
		w.deliveries.executor.Stalled(channel(w.id), reason)
	}
}

func (w *worker) revive(recovery string) {
	if w.stallCount--; w.stallCount == 0 {
		w.deliveries.executor.Recovered(channel(w.id), recovery)
	}
}

// noteResumed reports that the worker resumed a dispatch of a lost connection,
// once per connection.
func (w *worker) noteResumed(d *dispatch) {
	lostConnection := d.worker == nil && d.lastWorkerID != "" && d.lastWorkerID != w.id
	if lostConnection && !w.resumed {
		w.resumed = true
		w.deliveries.executor.Recovered(channel(w.id), job.RecoveredResumed)
	}
}

// channel returns a worker's name within the cluster.
func channel(workerID string) string { return job.Channel(job.Overhop, workerID) }

// maxOffered bounds how many of one subscription's credits are offered at once,
// and so the memory that a burst of large jobs for one client can take.
const maxOffered = 4096

// subscription is a worker's subscription to a queue. It is guarded by
// deliveries.mu, except for sid, queue and worker, which never change.
type subscription struct {
	sid     string
	queue   string
	worker  *worker
	credits uint32
	stalled bool // a QUEST was not acknowledged: no jobs until the next CREDIT
	closed  bool

	offered int  // what was last offered to the agent
	dirty   bool // in deliveries.dirty
}

// available returns the number of jobs that may be offered for sub.
// deliveries.mu is held.
func (sub *subscription) available() int {
	if sub.closed || sub.stalled || !sub.worker.takesJobs() {
		return 0
	}
	return int(min(sub.credits, maxOffered))
}

// takesJobs reports whether QUESTs may be sent to the worker, given credits.
// deliveries.mu is held.
func (w *worker) takesJobs() bool {
	leaving := w.closed || w.draining || w.drained || w.deliveries.draining
	return !leaving && w.conn.acceptsJobs() && !w.conn.out.congested.Load() && w.deliveries.tokens.known()
}

// addCredits adds credits, up to the maximum of the counter, and ends the stall
// of a subscription. deliveries.mu is held.
func (sub *subscription) addCredits(credits uint32) {
	sub.credits += min(credits, math.MaxUint32-sub.credits)
	sub.worker.noteAlive()
	sub.revive(job.RecoveredCredit)
	sub.changed()
}

// close withdraws the offer of a subscription that has ended. deliveries.mu is
// held.
func (sub *subscription) close() {
	sub.closed = true
	sub.changed()
}

// changed records that the offer of sub may have changed. deliveries.mu is
// held.
func (sub *subscription) changed() {
	if !sub.dirty {
		sub.dirty = true
		ds := sub.worker.deliveries
		ds.dirty = append(ds.dirty, sub)
	}
}

// flushOffers sends the offers that have changed to the agent, in order for each
// subscription. deliveries.mu must not be held.
func (ds *deliveries) flushOffers() {
	ds.offering.Lock()
	defer ds.offering.Unlock()
	offers := make([]job.Offer, 0, 16)
	ds.mu.Lock()
	for _, sub := range ds.dirty {
		sub.dirty = false
		if available := sub.available(); available != sub.offered {
			sub.offered = available
			offers = append(offers, job.Offer{Kind: job.Overhop, Key: sub.queue, Worker: sub.worker.id, Free: available})
		}
	}
	clear(ds.dirty)
	ds.dirty = ds.dirty[:0]
	ds.mu.Unlock()

	for _, offer := range offers {
		ds.executor.Offer(offer)
	}
}

// offerAllLocked makes unlock offer the capacity of all workers again.
func (ds *deliveries) offerAllLocked() {
	for _, w := range ds.workers {
		w.offersChanged()
	}
}

var (
	errDraining       = &codeError{overhop.CodeDraining, "no more jobs are given out over this connection", nil}
	errNoSubscription = &codeError{overhop.CodeSubNotFound, "worker has no such subscription", nil}
)

// handleSubscribe adds a subscription of the worker to a queue and answers with
// the subscription's id. A worker may have one subscription to a queue.
func (w *worker) handleSubscribe(ctx context.Context, request overhop.Subscribe) (overhop.Raw, error) {
	// If the queue has just been removed, the subscription waits for one of that name.
	known, err := w.conn.cluster.HasQueue(ctx, request.Queue)
	if err == nil && !known {
		err = job.ErrQueueNotFound
	}
	if err != nil {
		return nil, err
	}
	ds := w.deliveries
	ds.mu.Lock()
	defer ds.unlock()
	switch {
	case ds.draining || w.draining:
		return nil, errDraining
	case w.byQueue[request.Queue] != nil:
		return nil, &codeError{overhop.CodeDuplicateSub, "worker has a subscription to this queue already", nil}
	case len(w.subs) >= ds.cfg.Limits.Subscriptions:
		return nil, &codeError{overhop.CodeRateLimited, "worker has too many subscriptions", nil}
	}
	sub := &subscription{sid: uuid.NewString(), queue: request.Queue, worker: w, credits: request.Credits}
	w.subs[sub.sid], w.byQueue[sub.queue] = sub, sub
	sub.changed()
	return textField("sid", sub.sid), nil
}

// handleUnsubscribe removes a subscription of the worker. Its running jobs go on.
func (w *worker) handleUnsubscribe(_ context.Context, sid string) (overhop.Raw, error) {
	w.deliveries.mu.Lock()
	defer w.deliveries.unlock()
	sub := w.subs[sid]
	if sub == nil {
		return nil, errNoSubscription
	}
	delete(w.subs, sid)
	delete(w.byQueue, sub.queue)
	sub.revive(job.RecoveredLeft)
	sub.close()
	return nil, nil
}

// handleCredit adds credits to a subscription of the worker.
func (w *worker) handleCredit(_ context.Context, request overhop.Credit) (overhop.Raw, error) {
	w.deliveries.mu.Lock()
	defer w.deliveries.unlock()
	sub := w.subs[request.SID]
	switch {
	case sub == nil:
		return nil, errNoSubscription
	case w.deliveries.draining || w.draining:
		return nil, errDraining
	}
	sub.addCredits(request.Credits)
	return nil, nil
}

// pushCredits pushes a credit balance that the server has changed.
func (w *worker) pushCredits(sid string, credits uint32, reason string) {
	w.conn.pushFields(overhop.TCredits, overhop.Fields{"sid": sid, "credits": credits, "reason": reason})
}
