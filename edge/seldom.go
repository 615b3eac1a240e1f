package edge

import (
	"sync"
	"time"
)

// seldom counts what clients can bring about as often as they like, so that it
// is logged now and then and not each time: a flood must not fill the log.
type seldom struct {
	mu     sync.Mutex
	count  uint64
	silent time.Time // until then
}

// logPause is the time between two lines about the same.
const logPause = 5 * time.Second

// again counts one more. say tells to log it; n is how often it was since a
// line was last logged.
func (s *seldom) again(now time.Time) (n uint64, say bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	if now.Before(s.silent) {
		return 0, false
	}
	n, s.count, s.silent = s.count, 0, now.Add(logPause)
	return n, true
}
