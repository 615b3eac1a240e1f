package overhop

import (
	"context"
	"time"
)

// codeLeaseOver is what the log says of a lease that no node could renew in time.
const codeLeaseOver Code = "not renewed in time"

// overdueInterval is how often the leases of a connected worker are examined that have ended by
// its own clock.
const overdueInterval = 250 * time.Millisecond

// moveTime is how long a job whose lease has ended by its own clock is kept after the connection
// was lost: it may have been that of a node that hung, and the lease may continue at another.
const moveTime = time.Second

// watchLeases stops the handlers of jobs whose leases have ended while no node could be reached
// that renews them: the jobs may run elsewhere by then. A node that is reached extends a lease
// for as long as it owes answers, and recalls the job otherwise. watchLeases returns when ctx
// ends.
func (w *Worker) watchLeases(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-w.wakeLease:
		}
		expired, next := w.expiredLeases(time.Now())
		for _, job := range expired {
			w.loseLease(job, codeLeaseOver)
		}
		if !next.IsZero() {
			timer.Reset(time.Until(next))
		}
	}
}

// expiredLeases returns the jobs whose leases have ended, and when the next one ends; zero
// means that no job has a lease.
func (w *Worker) expiredLeases(now time.Time) (expired []*activeJob, next time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	cutOff := w.conn == nil && now.Sub(w.lostAt) >= moveTime
	for _, job := range w.running {
		switch {
		case !job.renewable():
		case !job.leaseEnd.After(now) && cutOff:
			expired = append(expired, job)
		case !job.leaseEnd.After(now):
			next = now.Add(overdueInterval)
		case next.IsZero() || job.leaseEnd.Before(next):
			next = job.leaseEnd
		}
	}
	w.unleased = next.IsZero()
	return expired, next
}

// watchLeaseLocked wakes watchLeases if it waits for a job with a lease. The leases of later
// jobs end after those of earlier ones, which it waits for. Worker.mu is held.
func (w *Worker) watchLeaseLocked() {
	if w.unleased {
		w.unleased = false
		select {
		case w.wakeLease <- struct{}{}:
		default: // it has been woken and has not looked yet
		}
	}
}
