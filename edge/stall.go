package edge

import "github.com/yardmaster-dev/yardmaster/job"

// This file reports workers that stall and recover. A worker stalls when a
// QUEST is not acknowledged in time, or when a job's lease expires. It has
// recovered when no such reason is left. The executor is called with Server.mu
// held, so it sees the changes in order.

// stallSubscription takes all credits from a subscription: it is sent no more
// jobs until its next CREDIT.
func (s *Server) stallSubscription(sub *subscription) {
	sub.credits = 0
	s.offers.markDirty(sub)
	if !sub.stalled && !sub.closed {
		sub.stalled = true
		s.stall(sub.conn, job.StalledAck)
	}
}

func (s *Server) reviveSubscription(sub *subscription, recovery string) {
	if sub.stalled {
		sub.stalled = false
		s.revive(sub.conn, recovery)
	}
}

// noteLeaseExpired records that a dispatch's lease expired. A worker whose
// connection is gone cannot recover: it would return under another id.
func (s *Server) noteLeaseExpired(d *dispatch) {
	switch c := d.conn; {
	case c == nil:
		s.executor.Stalled(channel(d.wid), job.StalledLease)
	case !c.leaseExpired:
		c.leaseExpired = true
		s.stall(c, job.StalledLease)
	}
}

// noteAlive records that a worker sends messages about jobs again.
func (s *Server) noteAlive(c *conn) {
	if c.leaseExpired {
		c.leaseExpired = false
		s.revive(c, job.RecoveredAlive)
	}
}

func (s *Server) stall(c *conn, reason string) {
	if c.stallCount++; c.stallCount == 1 {
		s.executor.Stalled(channel(c.wid), reason)
	}
}

func (s *Server) revive(c *conn, recovery string) {
	if c.stallCount--; c.stallCount == 0 {
		s.executor.Recovered(channel(c.wid), recovery)
	}
}

// noteResumed reports that c's worker resumed a dispatch of a lost connection,
// once per connection.
func (s *Server) noteResumed(d *dispatch, c *conn) {
	if d.conn == nil && d.wid != c.wid && d.wid != "" && !c.resumed {
		c.resumed = true
		s.executor.Recovered(channel(c.wid), job.RecoveredResumed)
	}
}

// channel returns a worker's name within the yard.
func channel(wid string) string { return job.Channel(job.Overhop, wid) }
