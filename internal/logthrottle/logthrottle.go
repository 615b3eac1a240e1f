// Package logthrottle limits log lines about events that clients can cause as
// often as they like. One line per interval is logged, with the number of events.
package logthrottle

import (
	"sync"
	"time"
)

// Interval is the minimum time between two log lines of one throttle.
const Interval = 5 * time.Second

// Throttle counts one kind of event. Its zero value is ready to use. It is safe
// for concurrent use.
type Throttle struct {
	mu         sync.Mutex
	count      uint64
	quietUntil time.Time // no log line before then
}

// Allow counts an event and reports whether to log it; n is then the number of
// events since the last log line.
func (t *Throttle) Allow(now time.Time) (n uint64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count++
	if now.Before(t.quietUntil) {
		return 0, false
	}
	n, t.count, t.quietUntil = t.count, 0, now.Add(Interval)
	return n, true
}
