package edge

import "yardmaster/job"

// This file tells the yard of workers that stall and recover. A connection
// stalls with its first subscription that lets a QUEST's time for ACK pass, or
// when a job's lease runs out in its hands; it has recovered when no such
// reason is left. Hands hears it with Server.mu held, so in its order.

// stallSub trusts a subscription with no more jobs until its next CREDIT.
func (s *Server) stallSub(sub *subscription) {
	sub.credits = 0
	s.offers.mark(sub)
	if !sub.stalled && !sub.ended {
		sub.stalled = true
		s.stall(sub.worker, job.StalledAck)
	}
}

func (s *Server) reviveSub(sub *subscription, recovery string) {
	if sub.stalled {
		sub.stalled = false
		s.revive(sub.worker, recovery)
	}
}

// overdue notes that a lease ran out. A worker whose connection is gone has
// nothing to recover by: it would come back under another name.
func (s *Server) overdue(d *dispatch) {
	switch c := d.worker; {
	case c == nil:
		s.hands.Stalled(channel(d.wid), job.StalledLease)
	case !c.overdue:
		c.overdue = true
		s.stall(c, job.StalledLease)
	}
}

// alive notes that a worker speaks of jobs again.
func (s *Server) alive(c *conn) {
	if c.overdue {
		c.overdue = false
		s.revive(c, job.RecoveredAlive)
	}
}

func (s *Server) stall(c *conn, reason string) {
	if c.stalls++; c.stalls == 1 {
		s.hands.Stalled(channel(c.wid), reason)
	}
}

func (s *Server) revive(c *conn, recovery string) {
	if c.stalls--; c.stalls == 0 {
		s.hands.Recovered(channel(c.wid), recovery)
	}
}

// cameBack notes that c goes on with a dispatch whose connection was lost. It
// is said once for all that c goes on with.
func (s *Server) cameBack(d *dispatch, c *conn) {
	if d.worker == nil && d.wid != c.wid && d.wid != "" && !c.cameBack {
		c.cameBack = true
		s.hands.Recovered(channel(c.wid), job.RecoveredResumed)
	}
}

// channel is a worker's name in the yard.
func channel(wid string) string { return job.Channel(job.Overhop, wid) }
