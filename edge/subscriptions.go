package edge

import (
	"context"
	"math"
	"sync"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

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

	offered int  // what was last offered to the agent; guarded by offerQueue.flushing
	dirty   bool // in offerQueue.dirty
}

// available returns the number of jobs that may be offered for sub.
// deliveries.mu is held.
func (sub *subscription) available() int {
	w := sub.worker
	if sub.closed || sub.stalled || w.ds.draining || w.draining || w.closed || w.conn.out.congested.Load() || !w.conn.acceptsJobs() || !w.ds.tokens.known() {
		return 0
	}
	return int(min(sub.credits, maxOffered))
}

// addCredits adds credits, up to the maximum of the counter, and ends the stall
// of a subscription. deliveries.mu is held.
func (sub *subscription) addCredits(credits uint32) {
	sub.credits += min(credits, math.MaxUint32-sub.credits)
	sub.worker.noteAlive()
	sub.revive(job.RecoveredCredit)
	sub.changed()
}

func (sub *subscription) close() {
	sub.closed = true
	sub.changed()
}

// changed records that the offer of sub may have changed. deliveries.mu is
// held.
func (sub *subscription) changed() {
	if !sub.dirty {
		sub.dirty = true
		offers := &sub.worker.ds.offers
		offers.dirty = append(offers.dirty, sub)
	}
}

// offerQueue sends changed offers to the agent, those of each subscription in
// order, without holding deliveries.mu during the calls.
type offerQueue struct {
	dirty []*subscription // guarded by deliveries.mu

	flushing sync.Mutex // held while offers are sent
}

// flushOffers sends the offers of all dirty subscriptions. If another goroutine
// is sending, that one sends them too.
func (ds *deliveries) flushOffers() {
	for ds.offers.flushing.TryLock() {
		var batch [16]job.Offer
		more := true
		for more {
			offers := ds.takeOffers(batch[:0])
			for _, o := range offers {
				ds.executor.Offer(o)
			}
			more = len(offers) > 0
		}
		ds.offers.flushing.Unlock()
		// What was marked since the last takeOffers found flushing locked.
		ds.mu.Lock()
		more = len(ds.offers.dirty) > 0
		ds.mu.Unlock()
		if !more {
			return
		}
	}
}

// takeOffers appends the offers of dirty subscriptions that have changed.
func (ds *deliveries) takeOffers(offers []job.Offer) []job.Offer {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	for i, sub := range ds.offers.dirty {
		ds.offers.dirty[i] = nil
		sub.dirty = false
		if available := sub.available(); available != sub.offered {
			sub.offered = available
			offers = append(offers, job.Offer{Kind: job.Overhop, Key: sub.queue, Worker: sub.worker.wid, Free: available})
		}
	}
	ds.offers.dirty = ds.offers.dirty[:0]
	return offers
}

// offerAll offers the capacity of all workers again.
func (ds *deliveries) offerAll() {
	ds.mu.Lock()
	for _, w := range ds.workers {
		w.offersChanged()
	}
	ds.unlock()
}

var (
	errDraining       = &codeError{overhop.CodeDraining, "no more jobs are given out over this connection", nil}
	errNoSubscription = &codeError{overhop.CodeSubNotFound, "worker has no such subscription", nil}
)

// subscribe adds a subscription.
func (w *worker) subscribe(sid, queue string, credits uint32) error {
	w.ds.mu.Lock()
	defer w.ds.mu.Unlock()
	switch {
	case w.ds.draining || w.draining:
		return errDraining
	case w.byQueue[queue] != nil:
		return &codeError{overhop.CodeDuplicateSub, "worker has a subscription to this queue already", nil}
	case len(w.subs) >= w.ds.cfg.Limits.Subscriptions:
		return &codeError{overhop.CodeRateLimited, "worker has too many subscriptions", nil}
	}
	if w.subs == nil {
		w.subs, w.byQueue = make(map[string]*subscription), make(map[string]*subscription)
	}
	sub := &subscription{sid: sid, queue: queue, worker: w, credits: credits}
	w.subs[sid], w.byQueue[queue] = sub, sub
	sub.changed()
	return nil
}

func (w *worker) handleSubscribe(ctx context.Context, m overhop.Subscribe) (overhop.Raw, error) {
	_, found, err := w.conn.cluster.Queue(ctx, m.Queue)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, job.ErrQueueNotFound
	}
	sid := uuid.NewString()
	if err := w.subscribe(sid, m.Queue, m.Credits); err != nil {
		return nil, err
	}
	return textField("sid", sid), nil
}

func (w *worker) handleUnsubscribe(_ context.Context, sid string) (overhop.Raw, error) {
	w.ds.mu.Lock()
	defer w.ds.mu.Unlock()
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

func (w *worker) handleCredit(_ context.Context, m overhop.Credit) (overhop.Raw, error) {
	w.ds.mu.Lock()
	defer w.ds.mu.Unlock()
	sub := w.subs[m.SID]
	switch {
	case sub == nil:
		return nil, errNoSubscription
	case w.ds.draining || w.draining:
		return nil, errDraining
	}
	sub.addCredits(m.Credits)
	return nil, nil
}

// pushCredits pushes a credit balance that the server has changed.
func (w *worker) pushCredits(sid string, credits uint32, reason string) {
	w.conn.pushFields(overhop.TCredits, overhop.Fields{"sid": sid, "credits": credits, "reason": reason})
}
