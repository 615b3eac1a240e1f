package edge

import (
	"container/heap"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// dispatch is one job sent to a worker. It is guarded by deliveries.mu, except for
// DispatchID, token, queue and timeout, which never change.
type dispatch struct {
	job.DispatchID
	token   token
	queue   string
	attempt uint32
	timeout time.Duration // 0: none

	worker       *worker // nil: it is not connected
	wid          string  // the last worker that had it; "": none on this node
	sub          *subscription
	state        state
	recallReason job.RecallReason // the first one, if recalled
	leaseUntil   time.Time        // end of the last lease granted to the worker; never after the node's own lease
	replyBy      time.Time        // when the worker must have acknowledged it or extended its lease
	busyAtGrant  time.Duration    // the connection's busy.elapsed when replyBy was set
	deadline     time.Time        // zero: none
	due          time.Time        // when its timer fires
	heapIndex    int              // index in timers.heap; -1: not in it
	moved        uint64           // log index of the entry that moved it here; 0: it was started here

	progress overhop.Raw // the last PROGRESS
	logLines int         // lines of its log so far
	waiters  []waiter    // DONEs and FAILs that are not answered yet
}

type state uint8

const (
	reserved   state = iota + 1 // QUEST sent, not acknowledged
	running                     // acknowledged, under a lease
	recalling                   // recalled, with a grace to end by itself
	ended                       // its outcome was passed to the agent
	ackExpired                  // not acknowledged in time; kept to answer a late ACK
)

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
	offers   offerQueue
	timers   timers

	mu         sync.Mutex
	workers    map[string]*worker           // registered connections, by worker id
	dispatches map[job.DispatchID]*dispatch // until their outcome is committed
	draining   bool                         // nothing is offered any more
}

func (ds *deliveries) init(cfg *Config, cluster Cluster, executor Executor, log *slog.Logger) {
	ds.cfg, ds.cluster, ds.executor, ds.log = cfg, cluster, executor, log
	ds.workers, ds.dispatches = make(map[string]*worker), make(map[job.DispatchID]*dispatch)
	ds.tokens.secret = cluster.Secret
	ds.timers.wake = make(chan struct{}, 1)
}

// addWorker adds a client that has registered, under its worker id.
func (ds *deliveries) addWorker(w *worker, wid string) {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	w.wid = wid
	ds.workers[wid] = w
}

// removeWorker removes the worker of a closed connection. Its dispatches that
// were not acknowledged end as never started; running ones stay until their
// lease expires.
func (ds *deliveries) removeWorker(w *worker) {
	ds.mu.Lock()
	delete(ds.workers, w.wid)
	w.closed = true
	for _, sub := range w.subs {
		sub.close()
	}
	var reports []report
	for d := range w.jobs {
		if d.state == reserved {
			reports = append(reports, ds.endLocked(d, lostOutcome(d, "connection lost before ACK")))
		}
		d.setWorkerLocked(nil)
	}
	w.jobs = nil
	ds.unlock(reports...)
}

// setDraining begins or ends a drain and offers the capacity of all workers
// again. It returns the workers, or nil if a drain had begun before.
func (ds *deliveries) setDraining(draining bool) []*worker {
	ds.mu.Lock()
	if draining && ds.draining {
		ds.mu.Unlock()
		return nil
	}
	ds.draining = draining
	workers := slices.Collect(maps.Values(ds.workers))
	ds.mu.Unlock()
	ds.offerAll()
	return workers
}

// reportInterrupted ends, when the node stops, the dispatches that were not
// acknowledged and those whose lease has expired. A worker with a valid lease
// may still be running its job, or be reconnecting to another node: such a
// dispatch is left to the authority, which ends it when the lease expires.
func (ds *deliveries) reportInterrupted() {
	now := time.Now()
	ds.mu.Lock()
	var reports []report
	for _, d := range ds.dispatches {
		if d.state == reserved || (d.state == running || d.state == recalling) && !d.leaseUntil.After(now) {
			reports = append(reports, ds.endLocked(d, job.Outcome{Status: job.Interrupted, Started: d.state != reserved}))
		}
	}
	ds.unlock(reports...)
}

// report is an outcome to be passed to the agent.
type report struct {
	d       *dispatch
	outcome job.Outcome
}

// endLocked ends a dispatch. The caller passes the result to reportOutcomes
// once deliveries.mu is released.
func (ds *deliveries) endLocked(d *dispatch, outcome job.Outcome) report {
	outcome.Job, outcome.N = d.Job, d.N
	d.state = ended
	d.progress = nil
	ds.timers.drop(d)
	if len(d.waiters) > 0 {
		d.due = time.Now().Add(ds.cfg.Delivery.settleWait())
		ds.timers.set(d)
	}
	return report{d, outcome}
}

// unlock releases deliveries.mu, then passes outcomes to the agent and sends the
// offers that have changed.
func (ds *deliveries) unlock(reports ...report) {
	ds.mu.Unlock()
	ds.reportOutcomes(reports...)
	ds.flushOffers()
}

// reportOutcomes passes outcomes to the agent. deliveries.mu must not be held.
func (ds *deliveries) reportOutcomes(reports ...report) {
	for _, r := range reports {
		ds.executor.Report(r.outcome, func(settled job.Settled) { ds.handleSettled(r.d, settled) })
	}
}

// handleSettled removes a dispatch whose outcome is committed and answers the
// requests that reported its end. All but the first are answered as duplicates.
func (ds *deliveries) handleSettled(d *dispatch, settled job.Settled) {
	ds.mu.Lock()
	w, waiters := d.worker, d.waiters
	d.waiters = nil
	ds.forgetLocked(d)
	if d.state == ackExpired {
		d.worker = nil
		ds.dispatches[d.DispatchID] = d
		ds.timers.set(d)
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
	ds.timers.drop(d)
	delete(ds.dispatches, d.DispatchID)
	if d.worker != nil {
		delete(d.worker.jobs, d)
	}
}

// attachLocked makes w the worker of d: the lease belongs to the
// token, not to the connection. A message that was sent before the worker
// disconnected has no effect, because the worker may already be back over
// another connection.
func (ds *deliveries) attachLocked(d *dispatch, w *worker) {
	if d.worker == w || w.closed || w.conn.ctx.Err() != nil || peerClosed(w.conn.socket()) {
		return
	}
	if d.worker != nil {
		delete(d.worker.jobs, d)
	}
	w.noteResumed(d)
	d.setWorkerLocked(w)
	d.wid = w.wid
	w.addJob(d)
}

// timers wakes one goroutine when the earliest dispatch is due. A dispatch
// whose due time was postponed is examined at the old time and set again, so
// that extending a lease does not change the heap. All fields but wake are
// guarded by deliveries.mu.
type timers struct {
	wake  chan struct{} // capacity 1: something is due before armed
	heap  byDue
	armed time.Time // when the goroutine wakes next; zero: never
}

// set adds d, or updates its position after its due time has changed.
func (t *timers) set(d *dispatch) {
	if d.heapIndex >= 0 {
		heap.Fix(&t.heap, d.heapIndex)
	} else {
		heap.Push(&t.heap, d)
	}
	if t.armed.IsZero() || d.due.Before(t.armed) {
		t.armed = d.due
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

func (t *timers) drop(d *dispatch) {
	if d.heapIndex >= 0 {
		heap.Remove(&t.heap, d.heapIndex)
	}
}

type byDue []*dispatch

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h byDue) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].heapIndex, h[j].heapIndex = i, j }
func (h *byDue) Push(x any)        { d := x.(*dispatch); d.heapIndex = len(*h); *h = append(*h, d) }
func (h *byDue) Pop() any {
	old := *h
	d := old[len(old)-1]
	old[len(old)-1] = nil
	d.heapIndex = -1
	*h = old[:len(old)-1]
	return d
}

// secretPoll is the interval at which the secret is requested until it is
// known.
const secretPoll = 100 * time.Millisecond

// runTimers runs expired timers until ctx ends.
func (ds *deliveries) runTimers(ctx context.Context) {
	noSecret := !ds.tokens.known()
	for {
		wait := ds.expire(time.Now())
		if noSecret {
			if noSecret = !ds.tokens.known(); !noSecret {
				ds.offerAll()
			}
			wait = min(wait, secretPoll)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-ds.timers.wake:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// expire handles all dispatches that are due and returns the time until the
// next.
func (ds *deliveries) expire(now time.Time) time.Duration {
	var actions []func()
	ds.mu.Lock()
	for len(ds.timers.heap) > 0 {
		d := ds.timers.heap[0]
		if d.due.After(now) {
			break
		}
		ds.timers.drop(d)
		if f := ds.expireLocked(d, now); f != nil {
			actions = append(actions, f)
		}
	}
	wait := time.Hour
	if len(ds.timers.heap) > 0 {
		wait = ds.timers.heap[0].due.Sub(now)
	}
	ds.timers.armed = now.Add(wait)
	ds.mu.Unlock()
	for _, f := range actions {
		f()
	}
	return wait
}

// expireLocked handles a dispatch whose timer has fired. It returns what the
// caller must run once deliveries.mu is released, or nil.
func (ds *deliveries) expireLocked(d *dispatch, now time.Time) func() {
	switch d.state {
	case reserved, running:
		pastDeadline := !d.deadline.IsZero() && !d.deadline.After(now)
		if until := d.replyDeadline(); until.After(now) && !pastDeadline {
			d.due = earlier(until, d.deadline)
			ds.timers.set(d)
			return nil
		}
		if d.state == reserved {
			return ds.expireAckLocked(d, now)
		}
		if pastDeadline {
			r := ds.recallLocked(d, job.RecallDeadline, now)
			return func() { ds.finishRecall(r) }
		}
		ds.noteLeaseExpired(d)
		r := ds.recallLocked(d, job.RecallLease, now)
		return func() { ds.finishRecall(r) }
	case recalling:
		if d.leaseUntil.After(now) && !d.receivedRecall() {
			d.due = earlier(now.Add(recallPoll), d.leaseUntil)
			ds.timers.set(d)
			return nil
		}
		rep := ds.endLocked(d, recalledOutcome(d, d.recallReason))
		return func() { ds.reportOutcomes(rep) }
	case ended:
		waiters := d.waiters
		d.waiters = nil
		return func() {
			for _, answer := range waiters {
				answer(job.Settled{}, &job.UnavailableError{Reason: "the outcome is not committed yet", RetryAfter: time.Second})
			}
		}
	case ackExpired:
		delete(ds.dispatches, d.DispatchID)
	}
	return nil
}

// expireAckLocked ends a dispatch whose QUEST was not acknowledged, and stalls
// its subscription until the next CREDIT.
func (ds *deliveries) expireAckLocked(d *dispatch, now time.Time) func() {
	sub, w := d.sub, d.worker
	sub.stall()
	rep := ds.endLocked(d, lostOutcome(d, "no ACK in time"))
	d.state, d.due = ackExpired, now.Add(ackExpiredTTL)
	return func() {
		ds.log.Warn("worker did not acknowledge a job in time", "job", d.Job, "dispatch", d.N, "queue", d.queue, "worker", d.wid)
		if w != nil {
			w.pushCredits(sub.sid, 0, overhop.CreditsStalled)
		}
		ds.reportOutcomes(rep)
		ds.flushOffers()
	}
}

// earlier returns the earlier of two times. A zero b means never.
func earlier(a, b time.Time) time.Time {
	if !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func timeoutMessage(d time.Duration) string {
	return fmt.Sprintf("Job timed out after %ss.", strconv.FormatFloat(d.Seconds(), 'f', -1, 64))
}
