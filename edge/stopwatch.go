package edge

import (
	"sync"
	"time"
)

// stopwatch adds up the time during which a connection's requests are handled
// or wait, and nothing is read. The worker's messages cannot be received during
// that time, so it does not count as silence.
type stopwatch struct {
	mu    sync.Mutex
	total time.Duration
	since time.Time // zero: not running
}

// start starts the stopwatch. It has no effect on a running one.
func (w *stopwatch) start() {
	w.mu.Lock()
	if w.since.IsZero() {
		w.since = time.Now()
	}
	w.mu.Unlock()
}

func (w *stopwatch) stop() {
	w.mu.Lock()
	if !w.since.IsZero() {
		w.total += time.Since(w.since)
		w.since = time.Time{}
	}
	w.mu.Unlock()
}

// elapsed returns the total time.
func (w *stopwatch) elapsed() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return w.total
	}
	return w.total + time.Since(w.since)
}

// setReplyByLocked sets the time by which the worker of d must reply.
// deliveries.mu is held.
func (d *dispatch) setReplyByLocked(until time.Time) {
	d.replyBy, d.busyAtGrant = until, 0
	if d.worker != nil {
		d.busyAtGrant = d.worker.conn.busy.elapsed()
	}
}

// replyDeadline returns replyBy, postponed by the time during which the
// connection was not read. deliveries.mu is held.
func (d *dispatch) replyDeadline() time.Time {
	if d.worker == nil {
		return d.replyBy
	}
	return d.replyBy.Add(d.worker.conn.busy.elapsed() - d.busyAtGrant)
}

// setWorkerLocked makes w the worker of d, nil for none, and keeps the time that
// is left until the worker must reply. deliveries.mu is held.
func (d *dispatch) setWorkerLocked(w *worker) {
	until := d.replyDeadline()
	d.worker = w
	d.setReplyByLocked(until)
}
