package edge

import (
	"math"
	"sync"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// maxOffered bounds how many of one subscription's credits are offered at once,
// and so the memory that a burst of large jobs for one client can take.
const maxOffered = 4096

// subscription is a worker's subscription to a queue. It is guarded by
// Server.mu, except for sid, queue and conn, which never change.
type subscription struct {
	sid     string
	queue   string
	conn    *conn
	credits uint32
	stalled bool // a QUEST was not acknowledged: no jobs until the next CREDIT
	closed  bool

	offered int  // what was last offered to the agent; guarded by offerQueue.flushing
	dirty   bool // in offerQueue.dirty
}

// available returns the number of jobs that may be offered for sub. Server.mu
// is held.
func (s *Server) available(sub *subscription) int {
	c := sub.conn
	if sub.closed || sub.stalled || s.draining || c.draining || c.closed || c.out.congested.Load() || !c.acceptsJobs() || !s.tokens.known() {
		return 0
	}
	return int(min(sub.credits, maxOffered))
}

// addCredits adds credits, up to the maximum of the counter, and ends the stall
// of a subscription. Server.mu is held.
func (s *Server) addCredits(sub *subscription, credits uint32) {
	sub.credits += min(credits, math.MaxUint32-sub.credits)
	s.noteAlive(sub.conn)
	s.reviveSubscription(sub, job.RecoveredCredit)
	s.offers.markDirty(sub)
}

// congestionChanged updates the offers of a worker after c.out.congested has
// changed. Calls may arrive late, so the present value counts.
func (s *Server) congestionChanged(c *conn) {
	s.mu.Lock()
	for _, sub := range c.subs {
		s.offers.markDirty(sub)
	}
	s.mu.Unlock()
	s.flushOffers()
}

func (s *Server) closeSubscription(sub *subscription) {
	sub.closed = true
	s.offers.markDirty(sub)
}

// offerQueue sends changed offers to the agent, those of each subscription in
// order, without holding Server.mu during the calls.
type offerQueue struct {
	dirty []*subscription // guarded by Server.mu

	flushing sync.Mutex // held while offers are sent
}

// markDirty records that the offer of sub may have changed. Server.mu is held.
func (o *offerQueue) markDirty(sub *subscription) {
	if !sub.dirty {
		sub.dirty = true
		o.dirty = append(o.dirty, sub)
	}
}

// flushOffers sends the offers of all dirty subscriptions. If another goroutine
// is sending, that one sends them too.
func (s *Server) flushOffers() {
	for s.offers.flushing.TryLock() {
		var batch [16]job.Offer
		more := true
		for more {
			offers := s.takeOffers(batch[:0])
			for _, o := range offers {
				s.executor.Offer(o)
			}
			more = len(offers) > 0
		}
		s.offers.flushing.Unlock()
		// What was marked since the last takeOffers found flushing locked.
		s.mu.Lock()
		more = len(s.offers.dirty) > 0
		s.mu.Unlock()
		if !more {
			return
		}
	}
}

// takeOffers appends the offers of dirty subscriptions that have changed.
func (s *Server) takeOffers(offers []job.Offer) []job.Offer {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, sub := range s.offers.dirty {
		s.offers.dirty[i] = nil
		sub.dirty = false
		if available := s.available(sub); available != sub.offered {
			sub.offered = available
			offers = append(offers, job.Offer{Kind: job.Overhop, Key: sub.queue, Worker: sub.conn.wid, Free: available})
		}
	}
	s.offers.dirty = s.offers.dirty[:0]
	return offers
}

var errDraining = &codeError{overhop.CodeDraining, "no more jobs are given out over this connection"}

// subscribe adds a subscription for c's worker.
func (s *Server) subscribe(c *conn, sid, queue string, credits uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining || c.draining:
		return errDraining
	case c.byQueue[queue] != nil:
		return &codeError{overhop.CodeDuplicateSub, "worker has a subscription to this queue already"}
	case len(c.subs) >= s.cfg.Limits.Subscriptions:
		return &codeError{overhop.CodeRateLimited, "worker has too many subscriptions"}
	}
	if c.subs == nil {
		c.subs, c.byQueue = make(map[string]*subscription), make(map[string]*subscription)
	}
	sub := &subscription{sid: sid, queue: queue, conn: c, credits: credits}
	c.subs[sid], c.byQueue[queue] = sub, sub
	s.offers.markDirty(sub)
	return nil
}

var errNoSubscription = &codeError{overhop.CodeSubNotFound, "worker has no such subscription"}

func (s *Server) unsubscribe(c *conn, sid string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := c.subs[sid]
	if sub == nil {
		return errNoSubscription
	}
	delete(c.subs, sid)
	delete(c.byQueue, sub.queue)
	s.reviveSubscription(sub, job.RecoveredLeft)
	s.closeSubscription(sub)
	return nil
}

func (s *Server) credit(c *conn, sid string, credits uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := c.subs[sid]
	switch {
	case sub == nil:
		return errNoSubscription
	case s.draining || c.draining:
		return errDraining
	}
	s.addCredits(sub, credits)
	return nil
}

// pushCredits pushes a credit balance that the server has changed.
func (c *conn) pushCredits(sid string, credits uint32, reason string) {
	c.pushFields(overhop.TCredits, overhop.Fields{"sid": sid, "credits": credits, "reason": reason})
}
