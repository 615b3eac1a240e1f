package edge

import (
	"container/heap"
	"context"
	"fmt"
	"strconv"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// dispatch is one job in a worker's hands. It is guarded by Server.mu, but for
// what never changes: ref, token, queue and timeout.
type dispatch struct {
	ref
	token   token
	queue   string
	attempt uint32
	timeout time.Duration // 0: none

	worker   *conn  // nil: its connection is gone
	wid      string // of the last worker that had it in hand; "": none here
	sub      *subscription
	state    state
	why      job.RecallReason // of a recall
	lease    time.Time        // until when its worker may be silent, or leave it without ACK
	unheard  time.Duration    // what worker.busy showed when that was set
	deadline time.Time        // zero: none
	due      time.Time        // when its timer is to look at it
	place    int              // in the timers' heap; -1: not there

	progress overhop.Raw // the last PROGRESS
	lines    int         // of its log so far
	waiters  []waiter    // who told the end and is not answered yet
}

type state uint8

const (
	reserved  state = iota + 1 // QUEST sent, not acknowledged
	running                    // acknowledged, under a lease
	recalling                  // to end by itself within a grace
	ended                      // its outcome is with the agent
	tooLate                    // was not acknowledged in time; remembered to say so
)

// rememberLate is how long a late ACK is told apart from a lost lease.
const rememberLate = time.Minute

// waiter answers a DONE or a FAIL. err tells that the yard does not answer.
type waiter func(settled job.Settled, err error)

// report is an outcome on its way to the agent.
type report struct {
	d       *dispatch
	outcome job.Outcome
}

// endLocked gives a dispatch its outcome. The caller tells it once Server.mu is
// free.
func (s *Server) endLocked(d *dispatch, o job.Outcome) report {
	o.Job, o.N = d.id, d.n
	d.state = ended
	d.progress = nil
	s.timers.drop(d)
	if len(d.waiters) > 0 {
		d.due = time.Now().Add(s.cfg.Delivery.SettleWait)
		s.timers.set(d)
	}
	return report{d, o}
}

// tell hands outcomes to the agent; Server.mu is free.
func (s *Server) tell(reports ...report) {
	for _, r := range reports {
		s.hands.Report(r.outcome, func(settled job.Settled) { s.settled(r.d, settled) })
	}
}

// settled forgets a dispatch and answers who waits for its end. Of several who
// told it, all but the first are duplicates.
func (s *Server) settled(d *dispatch, settled job.Settled) {
	s.mu.Lock()
	worker, waiters := d.worker, d.waiters
	d.waiters = nil
	s.forgetLocked(d)
	if d.state == tooLate {
		d.worker = nil
		s.dispatches[d.ref] = d
		s.timers.set(d)
	}
	s.mu.Unlock()
	for _, answer := range waiters {
		answer(settled, nil)
		settled.Dup = true
	}
	if worker != nil {
		s.partIfDone(worker)
	}
}

func (s *Server) forgetLocked(d *dispatch) {
	s.timers.drop(d)
	delete(s.dispatches, d.ref)
	if d.worker != nil {
		delete(d.worker.jobs, d)
	}
}

// attachLocked makes c the worker that holds d: the token decides, not the
// connection. What a worker said before it hung up moves nothing: it may be back
// over another connection already.
func (s *Server) attachLocked(d *dispatch, c *conn) {
	if d.worker == c || c.gone || c.ctx.Err() != nil || hungUpSocket(c.socket()) {
		return
	}
	if d.worker != nil {
		delete(d.worker.jobs, d)
	}
	s.cameBack(d, c)
	d.moveLocked(c)
	d.wid = c.wid
	if c.jobs == nil {
		c.jobs = make(map[*dispatch]struct{})
	}
	c.jobs[d] = struct{}{}
}

// timers wakes one goroutine when the earliest dispatch is due. A dispatch
// whose due time has moved back is found early and set again, so extending a
// lease costs nothing here. All but wake is guarded by Server.mu.
type timers struct {
	wake  chan struct{} // capacity 1: something is due before armed
	heap  byDue
	armed time.Time // when the goroutine will look; zero: never
}

// set puts d, or its new due time, in its place.
func (t *timers) set(d *dispatch) {
	if d.place >= 0 {
		heap.Fix(&t.heap, d.place)
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
	if d.place >= 0 {
		heap.Remove(&t.heap, d.place)
	}
}

type byDue []*dispatch

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h byDue) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].place, h[j].place = i, j }
func (h *byDue) Push(x any)        { d := x.(*dispatch); d.place = len(*h); *h = append(*h, d) }
func (h *byDue) Pop() any {
	old := *h
	d := old[len(old)-1]
	old[len(old)-1] = nil
	d.place = -1
	*h = old[:len(old)-1]
	return d
}

// secretPoll is how often the yard is asked for its secret before it has one.
const secretPoll = 100 * time.Millisecond

// runTimers ends what nobody keeps alive.
func (s *Server) runTimers(ctx context.Context) {
	keyless := !s.tokens.known()
	for {
		wait := s.expire(time.Now())
		if keyless {
			keyless = !s.announce()
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

// announce offers all room once the secret is known.
func (s *Server) announce() bool {
	if !s.tokens.known() {
		return false
	}
	s.mu.Lock()
	for _, c := range s.workers {
		for _, sub := range c.subs {
			s.offers.mark(sub)
		}
	}
	s.mu.Unlock()
	s.flushOffers()
	return true
}

// expire deals with all that is due and gives the time until the next.
func (s *Server) expire(now time.Time) time.Duration {
	var after []func()
	s.mu.Lock()
	for len(s.timers.heap) > 0 {
		d := s.timers.heap[0]
		if d.due.After(now) {
			break
		}
		s.timers.drop(d)
		if f := s.dueLocked(d, now); f != nil {
			after = append(after, f)
		}
	}
	wait := time.Hour
	if len(s.timers.heap) > 0 {
		wait = s.timers.heap[0].due.Sub(now)
	}
	s.timers.armed = now.Add(wait)
	s.mu.Unlock()
	for _, f := range after {
		f()
	}
	return wait
}

// dueLocked looks at a dispatch whose timer has come, and gives what is to be
// done once Server.mu is free.
func (s *Server) dueLocked(d *dispatch, now time.Time) func() {
	switch d.state {
	case reserved, running:
		past := !d.deadline.IsZero() && !d.deadline.After(now)
		if until := d.silentUntil(); until.After(now) && !past {
			d.due = earlier(until, d.deadline)
			s.timers.set(d)
			return nil
		}
		if d.state == reserved {
			return s.ackLateLocked(d, now)
		}
		if past {
			r := s.recallLocked(d, job.RecallDeadline, now)
			return func() { s.follow(r) }
		}
		s.overdue(d)
		r := s.recallLocked(d, job.RecallLease, now)
		return func() { s.follow(r) }
	case recalling:
		told := s.endLocked(d, recalled(d, d.why))
		return func() { s.tell(told) }
	case ended:
		waiters := d.waiters
		d.waiters = nil
		return func() {
			for _, answer := range waiters {
				answer(job.Settled{}, &job.UnavailableError{Reason: "the outcome is not committed yet", RetryAfter: time.Second})
			}
		}
	case tooLate:
		delete(s.dispatches, d.ref)
	}
	return nil
}

// ackLateLocked gives a QUEST back that was not acknowledged, and trusts its
// subscription with no more until it shows life by a CREDIT.
func (s *Server) ackLateLocked(d *dispatch, now time.Time) func() {
	sub, c := d.sub, d.worker
	s.stallSub(sub)
	told := s.endLocked(d, lost(d, "no ACK in time"))
	d.state, d.due = tooLate, now.Add(rememberLate)
	return func() {
		s.log.Warn("worker did not acknowledge a job", "job", d.id, "dispatch", d.n, "queue", d.queue)
		if c != nil {
			c.pushCredits(sub.sid, 0, overhop.CreditsStalled)
		}
		s.tell(told)
		s.flushOffers()
	}
}

// earlier is the earlier of two moments, of which b may be zero for none.
func earlier(a, b time.Time) time.Time {
	if !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func timedOut(d time.Duration) string {
	return fmt.Sprintf("Job timed out after %ss.", strconv.FormatFloat(d.Seconds(), 'f', -1, 64))
}
