package lanes

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Limits of publishes in flight.
const (
	maxInFlight   = 16384            // publishes
	maxHeldBytes  = 128 << 20        // bytes of their bodies
	minInFlight   = 256              // publishes that lanes which answer slowly still get
	slowAnswer    = laneTimeout      // answers that take longer are slow
	slowFor       = 10 * time.Second // how long the limit is lower after the last slow answer
	answersWindow = 10               // ticks in which answers are counted: a second
)

// inFlight limits the publishes that wait for the answer of a lane. While lanes answer
// slowly, the limit is what they stored in the last second, so that a job is either stored
// about a second later or refused at once: the caller of a job that waits for longer gives
// up and publishes it again, which makes the lanes slower still.
type inFlight struct {
	count   atomic.Int64
	bytes   atomic.Int64
	limit   atomic.Int64 // of count
	answers atomic.Int64 // since the node was started
	refused atomic.Int64 // publishes, since the node was started
	slow    atomic.Bool  // a lane answered slowly since the last tick

	// Of tick only.
	counted   [answersWindow]int64 // answers at the latest ticks
	ticks     int
	slowUntil time.Time
}

func newInFlight() *inFlight {
	f := &inFlight{}
	f.limit.Store(maxInFlight)
	return f
}

// reserve counts a publish of size bytes as in flight, until release is called. It returns
// an error if there are too many.
func (f *inFlight) reserve(size int) *job.UnavailableError {
	count, held, limit := f.count.Add(1), f.bytes.Add(int64(size)), f.limit.Load()
	if count <= limit && held <= maxHeldBytes {
		return nil
	}
	f.release(size)
	f.refused.Add(1)
	reason := "too many publishes are in flight at this node"
	if limit < maxInFlight {
		reason = fmt.Sprintf("the lanes store jobs slowly, and %d are in flight at this node", limit)
	}
	return &job.UnavailableError{Reason: reason, RetryAfter: time.Second}
}

func (f *inFlight) release(size int) {
	f.count.Add(-1)
	f.bytes.Add(-int64(size))
}

// answered records that a lane stored a job, and how long that took.
func (f *inFlight) answered(took time.Duration) {
	f.answers.Add(1)
	if took > slowAnswer {
		f.slow.Store(true)
	}
}

// tick sets the limit. It must be called every TickInterval.
func (f *inFlight) tick(now time.Time) {
	answers, at := f.answers.Load(), f.ticks%answersWindow
	inWindow := answers - f.counted[at]
	f.counted[at] = answers
	f.ticks++
	if f.slow.Swap(false) {
		f.slowUntil = now.Add(slowFor)
	}
	limit := int64(maxInFlight)
	if now.Before(f.slowUntil) {
		limit = min(max(inWindow, minInFlight), limit)
	}
	f.limit.Store(limit)
}

// lowered returns the limit of publishes in flight while lanes answer slowly; 0 if they do
// not.
func (f *inFlight) lowered() int64 {
	if limit := f.limit.Load(); limit < maxInFlight {
		return limit
	}
	return 0
}
