package edge

import (
	"sync"
	"time"
)

// stopwatch adds up the time in which a connection's requests are handled, or
// wait to be, and nothing more is read. A worker cannot be heard meanwhile, so
// that time does not count as its silence.
type stopwatch struct {
	mu    sync.Mutex
	total time.Duration
	since time.Time // zero: it stands
}

// start lets it run; nothing changes if it does.
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

// read is the time so far.
func (w *stopwatch) read() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return w.total
	}
	return w.total + time.Since(w.since)
}

// grantLocked gives the worker of d until the given moment to be heard of;
// Server.mu is held.
func (d *dispatch) grantLocked(until time.Time) {
	d.lease, d.unheard = until, 0
	if d.worker != nil {
		d.unheard = d.worker.busy.read()
	}
}

// silentUntil is when that time is over, as it looks now: what its connection was
// not read meanwhile comes on top. Server.mu is held.
func (d *dispatch) silentUntil() time.Time {
	if d.worker == nil {
		return d.lease
	}
	return d.lease.Add(d.worker.busy.read() - d.unheard)
}

// moveLocked puts d into the hands of c, or of nobody, with the time it has left;
// Server.mu is held.
func (d *dispatch) moveLocked(c *conn) {
	left := d.silentUntil()
	d.worker = c
	d.grantLocked(left)
}
