// Package seldom keeps a flood out of the log: what strangers can bring about
// as often as they like is told now and then, with how often it was.
package seldom

import (
	"sync"
	"time"
)

// Pause is the time between two lines about the same.
const Pause = 5 * time.Second

// Counter counts one thing. Its zero value is ready, also for many at once.
type Counter struct {
	mu     sync.Mutex
	count  uint64
	silent time.Time // until then
}

// Again counts one more. Say tells to log it; n is how often it was since a
// line was last logged.
func (c *Counter) Again(now time.Time) (n uint64, say bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	if now.Before(c.silent) {
		return 0, false
	}
	n, c.count, c.silent = c.count, 0, now.Add(Pause)
	return n, true
}
