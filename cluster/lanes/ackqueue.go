package lanes

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
)

const (
	releaseInterval = 5 * time.Millisecond // between two releases of acknowledgements
	maxHeldAcks     = 65536                // in one queue
)

// ackQueue delays acknowledgements. All wait in one line, so that no client gets ahead of
// another, and are released in groups. Without a delay they do not pass the queue.
type ackQueue struct {
	delay atomic.Int64 // present delay in nanoseconds
	held  atomic.Int64 // acknowledgements in the queue

	mu     crash.Mutex
	queue  []heldAck
	closed bool
	wake   chan struct{}
}

// heldAck is an acknowledgement that is delayed, by at most delay.
type heldAck struct {
	answer func()
	since  time.Time
	delay  time.Duration
}

func newAckQueue() *ackQueue { return &ackQueue{wake: make(chan struct{}, 1)} }

// add calls answer after the present delay, or at once if there is none. answer must not
// block.
func (q *ackQueue) add(answer func()) {
	delay := time.Duration(q.delay.Load())
	if delay == 0 && q.held.Load() == 0 {
		answer()
		return
	}
	q.mu.Lock()
	closed := q.closed
	if !closed {
		q.held.Add(1)
		q.queue = append(q.queue, heldAck{answer, time.Now(), delay})
	}
	q.mu.Unlock()
	if closed {
		answer()
		return
	}
	wakeup.Send(q.wake)
}

// full reports whether the queue can take no more acknowledgements.
func (q *ackQueue) full() bool { return q.held.Load() >= maxHeldAcks }

// run releases acknowledgements until ctx ends, and then all that are left.
func (q *ackQueue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			q.close()
			return
		case <-q.wake:
		}
		for q.release(time.Now()) && backoff.Sleep(ctx, releaseInterval) == nil {
		}
	}
}

// release calls the first acknowledgements that are due at the time now, and reports
// whether others are left. One that was delayed while the delay was longer is due by the
// present delay.
func (q *ackQueue) release(now time.Time) (more bool) {
	delay := time.Duration(q.delay.Load())
	q.mu.Lock()
	n := 0
	for n < len(q.queue) && now.Sub(q.queue[n].since) >= min(q.queue[n].delay, delay) {
		n++
	}
	due := q.queue[:n:n]
	q.queue = q.queue[n:]
	more = len(q.queue) > 0
	if !more {
		q.queue = nil // releases the array
	}
	q.mu.Unlock()
	for i := range due {
		due[i].answer()
	}
	clear(due) // of an array that the queue may still use
	q.held.Add(-int64(n))
	return more
}

// close calls all acknowledgements that are left. Later ones are not delayed.
func (q *ackQueue) close() {
	q.mu.Lock()
	left := q.queue
	q.queue, q.closed = nil, true
	q.mu.Unlock()
	for i := range left {
		left[i].answer()
	}
	q.held.Add(-int64(len(left)))
}
