package edge

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// dispatch is one job sent to a worker. It is guarded by deliveries.mu, except for
// DispatchID, token, queue, attempt and timeout, which never change.
type dispatch struct {
	job.DispatchID
	token   token
	queue   string
	attempt uint32
	timeout time.Duration // 0: none

	worker       *worker // nil: it is not connected
	lastWorkerID string  // the last worker that had it; "": none on this node
	sub          *subscription
	state        state
	recallReason job.RecallReason // the first one, if recalled
	recallText   string           // why the job was cancelled, for its worker; "": not given
	leaseUntil   time.Time        // end of the last lease granted to the worker; never after the node's own lease
	replyBy      time.Time        // when the worker must have acknowledged it or extended its lease
	busyAtGrant  time.Duration    // the connection's busy.elapsed when replyBy was set
	deadline     time.Time        // zero: none
	due          time.Time        // when expire is to handle it
	timer        *time.Timer      // calls expire; nil: never started
	moved        uint64           // log index of the entry that moved it here; 0: it was started here

	progress job.Progress // what the last PROGRESS contained; without the lease
	logLines int          // lines of its log so far
	waiters  []waiter     // DONEs and FAILs that are not answered yet
}

type state uint8

const (
	reserved   state = iota + 1 // QUEST sent, not acknowledged
	running                     // acknowledged, under a lease
	recalling                   // recalled, with a grace to end by itself
	ended                       // its outcome was passed to the agent
	ackExpired                  // not acknowledged in time; kept to answer a late ACK
)

// started reports whether the worker acknowledged d, so that its handler may
// have run. It must not be called on an ended dispatch.
func (d *dispatch) started() bool { return d.state != reserved }

// recallPoll is the interval at which a recalled dispatch is examined after its
// grace, while the worker has not received the recall.
const recallPoll = 100 * time.Millisecond

// ackExpiredTTL is how long a late ACK is answered with ACK_TIMEOUT instead of
// LEASE_LOST.
const ackExpiredTTL = time.Minute

// waiter answers a DONE or a FAIL. A non-nil err means that the outcome is not
// committed.
type waiter func(settled job.Settled, err error)

// deliveries holds the workers of this node and their dispatches, each from
// start to its outcome, and offers the workers' capacity to the agent. Its lock
// guards workers, subscriptions and dispatches, because they change together.
type deliveries struct {
	cfg      *Config
	cluster  Cluster
	executor Executor
	log      *slog.Logger
	tokens   tokens
	offering crash.Mutex // held while offers are sent; locked before mu

	mu            crash.Mutex
	workers       map[string]*worker           // registered connections, by worker id
	dispatches    map[job.DispatchID]*dispatch // until their outcome is committed
	draining      bool                         // nothing is offered any more
	dirty         []*subscription              // their offers may have changed
	deferred      []func()                     // run by unlock
	timersStopped bool
	expiring      sync.WaitGroup // running calls of expire; none is added after timersStopped is set
}

func newDeliveries(cfg *Config, cluster Cluster, executor Executor, log *slog.Logger) *deliveries {
	return &deliveries{
		cfg: cfg, cluster: cluster, executor: executor, log: log, tokens: tokens{secret: cluster.Secret},
		workers: make(map[string]*worker), dispatches: make(map[job.DispatchID]*dispatch),
	}
}

// deferLocked makes unlock call f, which must not run with deliveries.mu held:
// it writes to a connection or calls the agent.
func (ds *deliveries) deferLocked(f func()) { ds.deferred = append(ds.deferred, f) }

// unlock releases ds.mu. Then it makes the calls that deferLocked has collected, in
// their order, and sends the offers that have changed. These calls take other locks,
// which must not be taken while ds.mu is held.
func (ds *deliveries) unlock() {
	crash.EndOn(recover()) // it is deferred in place of ds.mu.Unlock
	var few [4]func()      // usually enough, so that ds.deferred can be used again
	calls, offersChanged := append(few[:0], ds.deferred...), len(ds.dirty) > 0
	clear(ds.deferred)
	ds.deferred = ds.deferred[:0]
	ds.mu.Unlock()
	for _, call := range calls {
		call()
	}
	if offersChanged {
		ds.flushOffers()
	}
}

// removeWorker removes the worker of a closed connection. Its dispatches that
// were not acknowledged end as never started; running ones stay, without a
// worker, until their lease expires.
func (ds *deliveries) removeWorker(w *worker) {
	ds.mu.Lock()
	defer ds.unlock()
	delete(ds.workers, w.id)
	w.closed = true
	for _, sub := range w.subs {
		sub.close()
	}
	for d := range w.jobs {
		if d.state == reserved {
			ds.endLocked(d, lostOutcome(d, "connection lost before ACK"))
		}
		d.setWorkerLocked(nil)
	}
	clear(w.jobs)
}

// setDraining begins or ends a drain and offers the capacity of all workers
// again. It returns the workers, or nil if a drain had begun before.
func (ds *deliveries) setDraining(draining bool) []*worker {
	ds.mu.Lock()
	defer ds.unlock()
	if draining && ds.draining {
		return nil
	}
	ds.draining = draining
	ds.offerAllLocked()
	return slices.Collect(maps.Values(ds.workers))
}

// reportInterrupted ends, when the node stops, the dispatches that were not
// acknowledged and those whose lease has expired. A worker with a valid lease
// may still be running its job, or be reconnecting to another node: such a
// dispatch is left to the authority, which ends it when the lease expires.
func (ds *deliveries) reportInterrupted() {
	now := time.Now()
	ds.mu.Lock()
	defer ds.unlock()
	for _, d := range ds.dispatches {
		leaseExpired := (d.state == running || d.state == recalling) && !d.leaseUntil.After(now)
		if d.state == reserved || leaseExpired {
			ds.endLocked(d, job.Outcome{Status: job.Interrupted, Started: d.started()})
		}
	}
}

// endLocked ends dispatch d with an outcome, which ds.unlock passes to the agent.
// The worker's requests that reported the end, d.waiters, are answered when the
// outcome is committed, or refused if that takes too long. The caller holds ds.mu.
func (ds *deliveries) endLocked(d *dispatch, outcome job.Outcome) {
	outcome.Job, outcome.N = d.Job, d.N
	d.state = ended
	d.progress = job.Progress{}
	d.stopTimer()
	if len(d.waiters) > 0 {
		ds.startTimer(d, time.Now().Add(ds.cfg.Delivery.settleWait()))
	}
	ds.deferLocked(func() {
		ds.executor.Report(outcome, func(settled job.Settled) { ds.handleSettled(d, settled) })
	})
}

// handleSettled removes a dispatch whose outcome is committed and answers the
// requests that reported its end. All but the first are answered as duplicates.
// A dispatch that was not acknowledged in time is kept for a while, without its
// worker, so that a late ACK is answered with the reason.
func (ds *deliveries) handleSettled(d *dispatch, settled job.Settled) {
	ds.mu.Lock()
	w, waiters := d.worker, d.waiters
	d.waiters = nil
	ds.forgetLocked(d)
	if d.state == ackExpired {
		d.worker = nil
		ds.dispatches[d.DispatchID] = d
		ds.startTimer(d, d.due)
	}
	ds.mu.Unlock()
	for _, answer := range waiters {
		answer(settled, nil)
		settled.Duplicate = true
	}
	if w != nil {
		w.closeIfDrained()
	}
}

// forgetLocked removes d from the server and from its connection.
func (ds *deliveries) forgetLocked(d *dispatch) {
	d.stopTimer()
	delete(ds.dispatches, d.DispatchID)
	if d.worker != nil {
		delete(d.worker.jobs, d)
	}
}

// startTimer makes expire handle d at the given time instead of any earlier
// one. deliveries.mu is held.
func (ds *deliveries) startTimer(d *dispatch, due time.Time) {
	d.due = due
	if d.timer == nil {
		d.timer = time.AfterFunc(time.Until(due), func() { ds.expire(d) })
	} else {
		d.timer.Reset(time.Until(due))
	}
}

// stopTimer stops d's timer. A call of expire that has begun finds d ended or
// removed.
func (d *dispatch) stopTimer() {
	if d.timer != nil {
		d.timer.Stop()
	}
}

// stopTimers stops the timers of all dispatches and waits for the running calls
// of expire.
func (ds *deliveries) stopTimers() {
	ds.mu.Lock()
	ds.timersStopped = true
	for _, d := range ds.dispatches {
		d.stopTimer()
	}
	ds.mu.Unlock()
	ds.expiring.Wait()
}

// expire is called by d's timer. It has no effect if d has been removed before
// it holds the lock.
func (ds *deliveries) expire(d *dispatch) {
	ds.mu.Lock()
	if ds.timersStopped || ds.dispatches[d.DispatchID] != d {
		ds.mu.Unlock()
		return
	}
	ds.expiring.Add(1)
	defer ds.expiring.Done()
	ds.expireLocked(d, time.Now())
	ds.unlock()
}

// expireLocked handles dispatch d, whose timer has fired, according to its state: a
// reply of the worker is overdue, the grace of a recall is over, the outcome was not
// committed in time, or the time for a late ACK is over. If d is not due yet, because
// its time was extended, expireLocked only starts the timer again. The caller holds
// ds.mu.
func (ds *deliveries) expireLocked(d *dispatch, now time.Time) {
	if d.due.After(now) {
		ds.startTimer(d, d.due)
		return
	}
	switch d.state {
	case reserved, running:
		ds.expireReplyLocked(d, now)
	case recalling:
		if d.leaseUntil.After(now) && !d.receivedRecall() {
			ds.startTimer(d, earlier(now.Add(recallPoll), d.leaseUntil))
			return
		}
		ds.endRecalledLocked(d, d.recallReason)
	case ended:
		for _, answer := range d.waiters {
			ds.deferLocked(func() {
				answer(job.Settled{}, &job.UnavailableError{Reason: "the outcome is not committed yet", RetryAfter: time.Second})
			})
		}
		d.waiters = nil
	case ackExpired:
		delete(ds.dispatches, d.DispatchID)
	}
}

// expireReplyLocked handles a dispatch whose worker has not replied in time or
// whose deadline has passed. If the worker has replied since the timer was
// started, it starts the timer again: extending a lease does not change the
// timer, because it happens often.
func (ds *deliveries) expireReplyLocked(d *dispatch, now time.Time) {
	pastDeadline := !d.deadline.IsZero() && !d.deadline.After(now)
	replyBy := d.replyDeadline()
	switch {
	case replyBy.After(now) && !pastDeadline:
		ds.startTimer(d, earlier(replyBy, d.deadline))
	case d.state == reserved:
		ds.expireAckLocked(d, now)
	case pastDeadline:
		ds.recallLocked(d, job.RecallDeadline)
	default:
		ds.noteLeaseExpired(d)
		ds.recallLocked(d, job.RecallLease)
	}
}

// expireAckLocked ends dispatch d, whose QUEST the worker has not acknowledged in
// time, and stalls the worker's subscription: it gets no jobs until its next CREDIT.
// d is kept for ackExpiredTTL, to answer a late ACK. The caller holds ds.mu.
func (ds *deliveries) expireAckLocked(d *dispatch, now time.Time) {
	sub, w, workerID := d.sub, d.worker, d.lastWorkerID
	sub.stall()
	ds.deferLocked(func() {
		ds.log.Warn("worker did not acknowledge a job in time", "job", d.Job, "dispatch", d.N, "queue", d.queue, "worker", workerID)
		if w != nil {
			w.pushCredits(sub.sid, 0, overhop.CreditsStalled)
		}
	})
	ds.endLocked(d, lostOutcome(d, "no ACK in time"))
	d.state, d.due = ackExpired, now.Add(ackExpiredTTL)
}

// earlier returns the earlier of two times. A zero b means never.
func earlier(a, b time.Time) time.Time {
	if !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// secretPoll is the interval at which the secret is requested until it is
// known.
const secretPoll = 100 * time.Millisecond

// awaitSecret waits until the key for lease tokens is known, without which
// nothing is offered, and then offers the capacity of all workers. It returns
// early if ctx ends.
func (ds *deliveries) awaitSecret(ctx context.Context) {
	for !ds.tokens.known() {
		if backoff.Sleep(ctx, secretPoll) != nil {
			return
		}
	}
	ds.mu.Lock()
	defer ds.unlock()
	ds.offerAllLocked()
}
