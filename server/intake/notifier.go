package intake

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Notifier sends the authority the records that this node has just had acknowledged.
// Records that arrive while a message is being sent go with the next one.
type Notifier struct {
	mu      crash.Mutex
	pending []job.Record
	bytes   int // of their bodies
	wake    chan struct{}
	send    func([]job.Record)
}

// Limits of a notifier. Records beyond those of the queue are dropped: the authority
// reads them from the lanes.
const (
	maxPendingBytes    = 32 << 20 // of the bodies in the queue
	maxPendingRecords  = 8192     // in the queue
	maxMessageRecords  = 256
	maxMessageBodySize = 512 << 10 // bytes; a larger body is sent alone
)

// NewNotifier returns a notifier that sends messages with send.
func NewNotifier(send func([]job.Record)) *Notifier {
	return &Notifier{wake: make(chan struct{}, 1), send: send}
}

// Add queues the records that a lane's message holds, or drops them all if the queue is full.
func (rn *Notifier) Add(records []job.Record) {
	rn.mu.Lock()
	if len(rn.pending) < maxPendingRecords && rn.bytes < maxPendingBytes {
		rn.pending = append(rn.pending, records...)
		for i := range records {
			rn.bytes += len(records[i].Body)
		}
	}
	rn.mu.Unlock()
	wakeup.Send(rn.wake)
}

// Run sends queued records, in messages within the limits, until ctx ends.
func (rn *Notifier) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-rn.wake:
		}
		rn.mu.Lock()
		batch := rn.pending
		rn.pending, rn.bytes = nil, 0
		rn.mu.Unlock()
		for len(batch) > 0 {
			count := nextNotice(batch)
			rn.send(batch[:count])
			batch = batch[count:]
		}
	}
}

// nextNotice returns how many of the first records the next message holds: within the limits,
// but at least those of one message of a lane, and never only a part of those.
func nextNotice(records []job.Record) (count int) {
	size := 0
	for i := range records {
		size += len(records[i].Body)
		if i > 0 && records[i].Index == 0 { // a message of a lane begins
			count = i
			if i >= maxMessageRecords {
				return count
			}
		}
		if count > 0 && size >= maxMessageBodySize {
			return count
		}
	}
	return len(records)
}
