package scheduler

import (
	"context"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// ensureInterval is how often the streams are verified: that they exist, and that
// each member leads its lane.
const ensureInterval = 15 * time.Second

// streamVerifier creates the streams of a new cluster and verifies the streams of
// every cluster. Its fields do not change, apart from problem, which belongs to the
// loop's goroutine.
type streamVerifier struct {
	loop     *eventLoop
	lanes    Lanes
	operator operatorTopics
	ready    chan struct{} // closed when the streams exist
	problem  string        // what is wrong with the streams; "": nothing
}

// run creates the streams of a new cluster, and those that this release has added to the
// streams of an older one, records in the ledger that they exist, and verifies them every
// ensureInterval until ctx ends. A stream that is missing later is not created again: it
// makes the node not ready.
func (v *streamVerifier) run(ctx context.Context, identities []string) error {
	created, ready := v.created(), false
	if created < ledger.StreamGeneration {
		v.loop.post(func() { v.problem = streamsBeingCreated })
	}
	for failures := 0; ctx.Err() == nil; {
		err := v.lanes.Ensure(ctx, identities, created)
		if err != nil {
			if failures++; failures == 1 {
				v.loop.log.Warn("stream verification failed", "err", err)
			} else {
				v.loop.post(func() {
					v.problem = err.Error()
					v.operator.note(topicStreams, err)
				})
			}
			backoff.Sleep(ctx, time.Second)
			continue
		}
		failures = 0
		v.loop.post(func() { v.problem = "" })
		if !ready {
			ready = true
			close(v.ready)
		}
		if created < ledger.StreamGeneration {
			created = ledger.StreamGeneration
			v.loop.post(func() { v.loop.submit(&ledger.Bootstrap{StreamsCreated: true, Generation: created}, nil) })
		}
		backoff.Sleep(ctx, ensureInterval)
	}
	return nil
}

// created returns the generation of the streams that the ledger records as created.
func (v *streamVerifier) created() (generation uint8) {
	v.loop.ledger.View(func(l *ledger.Ledger) { generation = l.Streams() })
	return generation
}

// await blocks until the streams of a new cluster exist or ctx ends.
func (v *streamVerifier) await(ctx context.Context) {
	if v.created() > 0 {
		return
	}
	select {
	case <-v.ready:
	case <-ctx.Done():
	}
}
