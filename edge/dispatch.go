package edge

import (
	"container/heap"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// dispatch is one job sent to a worker. It is guarded by Server.mu, except for
// DispatchID, token, queue and timeout, which never change.
type dispatch struct {
	job.DispatchID
	token   token
	queue   string
	attempt uint32
	timeout time.Duration // 0: none

	conn         *conn  // nil: the worker is not connected
	wid          string // the last worker that had it; "": none on this node
	sub          *subscription
	state        state
	recallReason job.RecallReason // the first one, if recalled
	leaseUntil   time.Time        // end of the last lease granted to the worker; never after the node's own lease
	replyBy      time.Time        // when the worker must have acknowledged it or extended its lease
	busyAtGrant  time.Duration    // conn.busy.elapsed when replyBy was set
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

// report is an outcome to be passed to the agent.
type report struct {
	d       *dispatch
	outcome job.Outcome
}

// endLocked ends a dispatch. The caller passes the result to reportOutcomes
// once Server.mu is released.
func (s *Server) endLocked(d *dispatch, outcome job.Outcome) report {
	outcome.Job, outcome.N = d.Job, d.N
	d.state = ended
	d.progress = nil
	s.timers.drop(d)
	if len(d.waiters) > 0 {
		d.due = time.Now().Add(s.cfg.Delivery.settleWait())
		s.timers.set(d)
	}
	return report{d, outcome}
}

// reportOutcomes passes outcomes to the agent. Server.mu must not be held.
func (s *Server) reportOutcomes(reports ...report) {
	for _, r := range reports {
		s.executor.Report(r.outcome, func(settled job.Settled) { s.handleSettled(r.d, settled) })
	}
}

// handleSettled removes a dispatch whose outcome is committed and answers the
// requests that reported its end. All but the first are answered as duplicates.
func (s *Server) handleSettled(d *dispatch, settled job.Settled) {
	s.mu.Lock()
	conn, waiters := d.conn, d.waiters
	d.waiters = nil
	s.forgetLocked(d)
	if d.state == ackExpired {
		d.conn = nil
		s.dispatches[d.DispatchID] = d
		s.timers.set(d)
	}
	s.mu.Unlock()
	for _, answer := range waiters {
		answer(settled, nil)
		settled.Duplicate = true
	}
	if conn != nil {
		s.closeIfDrained(conn)
	}
}

// forgetLocked removes d from the server and from its connection.
func (s *Server) forgetLocked(d *dispatch) {
	s.timers.drop(d)
	delete(s.dispatches, d.DispatchID)
	if d.conn != nil {
		delete(d.conn.jobs, d)
	}
}

// attachLocked makes c the connection of d's worker: the lease belongs to the
// token, not to the connection. A message that was sent before the worker
// disconnected has no effect, because the worker may already be back over
// another connection.
func (s *Server) attachLocked(d *dispatch, c *conn) {
	if d.conn == c || c.closed || c.ctx.Err() != nil || peerClosed(c.socket()) {
		return
	}
	if d.conn != nil {
		delete(d.conn.jobs, d)
	}
	s.noteResumed(d, c)
	d.setConnLocked(c)
	d.wid = c.wid
	if c.jobs == nil {
		c.jobs = make(map[*dispatch]struct{})
	}
	c.jobs[d] = struct{}{}
}

// timers wakes one goroutine when the earliest dispatch is due. A dispatch
// whose due time was postponed is examined at the old time and set again, so
// that extending a lease does not change the heap. All fields but wake are
// guarded by Server.mu.
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
func (s *Server) runTimers(ctx context.Context) {
	noSecret := !s.tokens.known()
	for {
		wait := s.expire(time.Now())
		if noSecret {
			noSecret = !s.offerAll()
			wait = min(wait, secretPoll)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.timers.wake:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// offerAll offers all capacity and returns true once the secret is known.
func (s *Server) offerAll() bool {
	if !s.tokens.known() {
		return false
	}
	s.mu.Lock()
	for _, c := range s.workers {
		for _, sub := range c.subs {
			s.offers.markDirty(sub)
		}
	}
	s.mu.Unlock()
	s.flushOffers()
	return true
}

// expire handles all dispatches that are due and returns the time until the
// next.
func (s *Server) expire(now time.Time) time.Duration {
	var actions []func()
	s.mu.Lock()
	for len(s.timers.heap) > 0 {
		d := s.timers.heap[0]
		if d.due.After(now) {
			break
		}
		s.timers.drop(d)
		if f := s.expireLocked(d, now); f != nil {
			actions = append(actions, f)
		}
	}
	wait := time.Hour
	if len(s.timers.heap) > 0 {
		wait = s.timers.heap[0].due.Sub(now)
	}
	s.timers.armed = now.Add(wait)
	s.mu.Unlock()
	for _, f := range actions {
		f()
	}
	return wait
}

// expireLocked handles a dispatch whose timer has fired. It returns what the
// caller must run once Server.mu is released, or nil.
func (s *Server) expireLocked(d *dispatch, now time.Time) func() {
	switch d.state {
	case reserved, running:
		pastDeadline := !d.deadline.IsZero() && !d.deadline.After(now)
		if until := d.replyDeadline(); until.After(now) && !pastDeadline {
			d.due = earlier(until, d.deadline)
			s.timers.set(d)
			return nil
		}
		if d.state == reserved {
			return s.expireAckLocked(d, now)
		}
		if pastDeadline {
			r := s.recallLocked(d, job.RecallDeadline, now)
			return func() { s.finishRecall(r) }
		}
		s.noteLeaseExpired(d)
		r := s.recallLocked(d, job.RecallLease, now)
		return func() { s.finishRecall(r) }
	case recalling:
		if d.leaseUntil.After(now) && !d.receivedRecall() {
			d.due = earlier(now.Add(recallPoll), d.leaseUntil)
			s.timers.set(d)
			return nil
		}
		rep := s.endLocked(d, recalledOutcome(d, d.recallReason))
		return func() { s.reportOutcomes(rep) }
	case ended:
		waiters := d.waiters
		d.waiters = nil
		return func() {
			for _, answer := range waiters {
				answer(job.Settled{}, &job.UnavailableError{Reason: "the outcome is not committed yet", RetryAfter: time.Second})
			}
		}
	case ackExpired:
		delete(s.dispatches, d.DispatchID)
	}
	return nil
}

// expireAckLocked ends a dispatch whose QUEST was not acknowledged, and stalls
// its subscription until the next CREDIT.
func (s *Server) expireAckLocked(d *dispatch, now time.Time) func() {
	sub, c := d.sub, d.conn
	s.stallSubscription(sub)
	rep := s.endLocked(d, lostOutcome(d, "no ACK in time"))
	d.state, d.due = ackExpired, now.Add(ackExpiredTTL)
	return func() {
		s.log.Warn("worker did not acknowledge a job in time", "job", d.Job, "dispatch", d.N, "queue", d.queue, "worker", d.wid)
		if c != nil {
			c.pushCredits(sub.sid, 0, overhop.CreditsStalled)
		}
		s.reportOutcomes(rep)
		s.flushOffers()
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
