package edge

import (
	"math"
	"sync"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// mostOffered bounds what is offered of one subscription's credits at once, so
// that a burst of large bodies for one client stays bounded.
const mostOffered = 4096

// subscription is a worker's wish for a queue's jobs. It is guarded by
// Server.mu, but for what never changes.
type subscription struct {
	sid     string // never changes, as worker and queue
	queue   string
	worker  *conn
	credits uint32
	stalled bool // a QUEST was not acknowledged: no jobs until the next CREDIT
	ended   bool

	offered int  // as the agent heard it last; the offer desk's own
	marked  bool // waits at the offer desk
}

// room is what is to be offered of s now.
func (s *Server) room(sub *subscription) int {
	c := sub.worker
	if sub.ended || sub.stalled || s.draining || c.leaving || c.gone || c.out.stuffed.Load() || !c.takesJobs() || !s.tokens.known() {
		return 0
	}
	return int(min(sub.credits, mostOffered))
}

// give adds credits, as many as the counter holds, and revives a stalled
// subscription.
func (s *Server) give(sub *subscription, credits uint32) {
	sub.credits += min(credits, math.MaxUint32-sub.credits)
	s.alive(sub.worker)
	s.reviveSub(sub, job.RecoveredCredit)
	s.offers.mark(sub)
}

// noteStuffed tells of a worker's room when too much waits for it to read, or no
// longer does. Which of the two the outbox knows: who says so may come late.
func (s *Server) noteStuffed(c *conn) {
	s.mu.Lock()
	for _, sub := range c.subs {
		s.offers.mark(sub)
	}
	s.mu.Unlock()
	s.flushOffers()
}

func (s *Server) dropSubscription(sub *subscription) {
	sub.ended = true
	s.offers.mark(sub)
}

// offerDesk tells the agent of changed room, each subscription's in the order
// of its changes, without holding Server.mu while it tells.
type offerDesk struct {
	changed []*subscription // guarded by Server.mu

	desk sync.Mutex // whoever holds it tells what has changed
}

// mark notes a change; Server.mu is held.
func (o *offerDesk) mark(sub *subscription) {
	if !sub.marked {
		sub.marked = true
		o.changed = append(o.changed, sub)
	}
}

// flushOffers tells what was marked. If somebody else is telling, that one
// tells it too.
func (s *Server) flushOffers() {
	for s.offers.desk.TryLock() {
		var batch [16]job.Offer
		more := true
		for more {
			offers := s.takeOffers(batch[:0])
			for _, o := range offers {
				s.hands.Offer(o)
			}
			more = len(offers) > 0
		}
		s.offers.desk.Unlock()
		// What was marked since the last look found the desk taken.
		s.mu.Lock()
		more = len(s.offers.changed) > 0
		s.mu.Unlock()
		if !more {
			return
		}
	}
}

// takeOffers reads the present room of what has changed.
func (s *Server) takeOffers(offers []job.Offer) []job.Offer {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, sub := range s.offers.changed {
		s.offers.changed[i] = nil
		sub.marked = false
		if room := s.room(sub); room != sub.offered {
			sub.offered = room
			offers = append(offers, job.Offer{Kind: job.Overhop, Key: sub.queue, Worker: sub.worker.wid, Free: room})
		}
	}
	s.offers.changed = s.offers.changed[:0]
	return offers
}

var errDraining = &codeError{overhop.CodeDraining, "no more jobs are given out over this connection"}

// subscribe adds a subscription.
func (s *Server) subscribe(c *conn, sid, queue string, credits uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining || c.leaving:
		return errDraining
	case c.byQueue[queue] != nil:
		return &codeError{overhop.CodeDuplicateSub, "worker has a subscription to this queue already"}
	case len(c.subs) >= s.cfg.Limits.Subscriptions:
		return &codeError{overhop.CodeRateLimited, "worker has too many subscriptions"}
	}
	if c.subs == nil {
		c.subs, c.byQueue = make(map[string]*subscription), make(map[string]*subscription)
	}
	sub := &subscription{sid: sid, queue: queue, worker: c, credits: credits}
	c.subs[sid], c.byQueue[queue] = sub, sub
	s.offers.mark(sub)
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
	s.reviveSub(sub, job.RecoveredLeft)
	s.dropSubscription(sub)
	return nil
}

func (s *Server) credit(c *conn, sid string, credits uint32) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	sub := c.subs[sid]
	switch {
	case sub == nil:
		return errNoSubscription
	case s.draining || c.leaving:
		return errDraining
	}
	s.give(sub, credits)
	return nil
}

// pushCredits tells a balance that changed by our hand.
func (c *conn) pushCredits(sid string, credits uint32, reason string) {
	c.pushFields(overhop.TCredits, overhop.Fields{"sid": sid, "credits": credits, "reason": reason})
}
