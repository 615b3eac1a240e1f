package edge

import (
	"github.com/yardmaster-dev/yardmaster/job"
)

// worker is a client as a receiver of jobs: its subscriptions, the jobs that it
// runs, and whether it works on them. Every connection has one. All fields from
// wid on are guarded by deliveries.mu.
type worker struct {
	conn *conn
	ds   *deliveries

	// Used by the read loop only.
	scratch         []byte // buffer for an answer's payload
	closeAfterReply bool   // GOODBYE was sent without drain: close once it is answered

	wid      string // empty: not registered; constant afterwards
	subs     map[string]*subscription
	byQueue  map[string]*subscription
	jobs     map[*dispatch]struct{} // dispatched to this worker and not settled
	draining bool                   // GOODBYE was received: no more jobs
	closed   bool

	stallCount   int  // number of reasons to treat the worker as stalled
	leaseExpired bool // one of them: a job's lease expired
	resumed      bool // it was reported that the worker resumed jobs of another connection
}

// addJob adds a dispatch to those of the worker.
func (w *worker) addJob(d *dispatch) {
	if w.jobs == nil {
		w.jobs = make(map[*dispatch]struct{})
	}
	w.jobs[d] = struct{}{}
}

// congestionChanged updates the worker's offers after conn.out.congested has
// changed. Calls may arrive late, so the present value counts.
func (w *worker) congestionChanged() {
	w.ds.mu.Lock()
	w.offersChanged()
	w.ds.unlock()
}

// offersChanged records that the offers of all subscriptions may have changed.
func (w *worker) offersChanged() {
	for _, sub := range w.subs {
		sub.changed()
	}
}

// A worker stalls when a QUEST is not acknowledged in time, or when a job's
// lease expires. It has recovered when no such reason is left. The executor is
// called with deliveries.mu held, so it sees the changes in order.

// stall takes all credits from a subscription: it is sent no more jobs until
// its next CREDIT.
func (sub *subscription) stall() {
	sub.credits = 0
	sub.changed()
	if !sub.stalled && !sub.closed {
		sub.stalled = true
		sub.worker.stall(job.StalledAck)
	}
}

func (sub *subscription) revive(recovery string) {
	if sub.stalled {
		sub.stalled = false
		sub.worker.revive(recovery)
	}
}

// noteLeaseExpired records that a dispatch's lease expired. A worker whose
// connection is gone cannot recover: it would return under another id.
func (ds *deliveries) noteLeaseExpired(d *dispatch) {
	switch w := d.worker; {
	case w == nil:
		ds.executor.Stalled(channel(d.wid), job.StalledLease)
	case !w.leaseExpired:
		w.leaseExpired = true
		w.stall(job.StalledLease)
	}
}

// noteAlive records that a worker sends messages about jobs again.
func (w *worker) noteAlive() {
	if w.leaseExpired {
		w.leaseExpired = false
		w.revive(job.RecoveredAlive)
	}
}

func (w *worker) stall(reason string) {
	if w.stallCount++; w.stallCount == 1 {
		w.ds.executor.Stalled(channel(w.wid), reason)
	}
}

func (w *worker) revive(recovery string) {
	if w.stallCount--; w.stallCount == 0 {
		w.ds.executor.Recovered(channel(w.wid), recovery)
	}
}

// noteResumed reports that the worker resumed a dispatch of a lost connection,
// once per connection.
func (w *worker) noteResumed(d *dispatch) {
	if d.worker == nil && d.wid != w.wid && d.wid != "" && !w.resumed {
		w.resumed = true
		w.ds.executor.Recovered(channel(w.wid), job.RecoveredResumed)
	}
}

// channel returns a worker's name within the yard.
func channel(wid string) string { return job.Channel(job.Overhop, wid) }
