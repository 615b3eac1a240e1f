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
	minInFlight   = 256              // the lowest limit, and how many must be in flight for late answers to lower it
	slowAnswer    = laneTimeout      // answers that take longer are slow
	slowFor       = 10 * time.Second // how long the limit is lower after the last slow answer
	answersWindow = 10               // ticks in which answers are counted: a second
)

// inFlight limits the publishes that wait for the answer of a lane. While lanes answer
// slowly, or not in time, the limit is what they stored in the last second, so that a job is
// either stored about a second later or refused at once: the caller of a job that waits for
// longer gives up and publishes it again, which makes the lanes slower still.
type inFlight struct {
	count   atomic.Int64
	bytes   atomic.Int64
	limit   atomic.Int64 // of count
	answers atomic.Int64 // since the node was started
	refused atomic.Int64 // publishes, since the node was started
	slow    atomic.Bool  // since the last tick, a lane was late while at least minInFlight publishes were in flight

	// Of tick only.
	counted   [answersWindow]answersAt // at each of the last ticks
	ticks     int
	slowUntil time.Time
}

// answersAt is the value of answers at a time.
type answersAt struct {
	answers int64
	at      time.Time
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
		f.late()
	}
}

// late records that a lane did not answer a publish in time, and reports whether that counts:
// while fewer than minInFlight publishes are in flight, the lane may only be electing a leader.
func (f *inFlight) late() (counts bool) {
	counts = f.count.Load() >= minInFlight
	if counts {
		f.slow.Store(true)
	}
	return counts
}

// full returns the error with which reserve would refuse one more publish, nil if it would
// not.
func (f *inFlight) full() *job.UnavailableError {
	err := f.reserve(0)
	if err == nil {
		f.release(0)
	}
	return err
}

// tick sets the limit. It must be called about every TickInterval.
func (f *inFlight) tick(now time.Time) {
	answers, oldest := f.answers.Load(), &f.counted[f.ticks%answersWindow]
	window := now.Sub(oldest.at) // ticks may come late
	if oldest.at.IsZero() {
		window = time.Second
	}
	perSecond := int64(float64(answers-oldest.answers) / max(window, TickInterval).Seconds())
	*oldest = answersAt{answers, now}
	f.ticks++
	if f.slow.Swap(false) {
		f.slowUntil = now.Add(slowFor)
	}
	limit := int64(maxInFlight)
	if now.Before(f.slowUntil) {
		limit = min(max(perSecond, minInFlight), limit)
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
