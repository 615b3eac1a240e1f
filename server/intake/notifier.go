package intake

import (
	"context"
	"sync"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Notifier sends the authority the records that this node has just had acknowledged.
// Records that arrive while a message is being sent go with the next one.
type Notifier struct {
	mu      sync.Mutex
	pending []job.Record
	bytes   int // of their bodies
	wake    chan struct{}
	send    func([]job.Record)
}

const (
	maxPendingBytes   = 32 << 20
	maxPendingRecords = 8192 // further ones are left to the authority's reads of the lanes
	maxNoticeRecords  = 256  // records in a message
	noticeMaxBytes    = 512 << 10
)

// NewNotifier returns a notifier that sends messages with send.
func NewNotifier(send func([]job.Record)) *Notifier {
	return &Notifier{wake: make(chan struct{}, 1), send: send}
}

// Add queues a record for the next message.
func (rn *Notifier) Add(r job.Record) {
	rn.mu.Lock()
	if len(rn.pending) < maxPendingRecords && rn.bytes < maxPendingBytes {
		rn.pending = append(rn.pending, r)
		rn.bytes += len(r.Body)
	}
	rn.mu.Unlock()
	select {
	case rn.wake <- struct{}{}:
	default:
	}
}

// Run sends queued records until ctx ends.
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
			k, bytes := 0, 0
			for k < len(batch) && k < maxNoticeRecords && (k == 0 || bytes+len(batch[k].Body) < noticeMaxBytes) {
				bytes += len(batch[k].Body)
				k++
			}
			rn.send(batch[:k])
			batch = batch[k:]
		}
	}
}
