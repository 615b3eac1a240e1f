package lanes

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestAckQueue checks that acknowledgements are delayed as long as configured when they
// were added, and no longer than at present, in their order; and that none is lost.
func TestAckQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newAckQueue()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { q.run(ctx); close(ended) }()
		type ack struct {
			id    int
			after time.Duration
		}
		var acks []ack
		began := time.Now()
		add := func(id int) { q.add(func() { acks = append(acks, ack{id, time.Since(began)}) }) }
		check := func(name string, want ...ack) {
			t.Helper()
			synctest.Wait()
			rounded := slices.Clone(acks)
			for i := range rounded {
				rounded[i].after = rounded[i].after.Truncate(10 * time.Millisecond)
			}
			if !slices.Equal(rounded, want) {
				t.Errorf("%s: %v, want %v", name, acks, want)
			}
			acks, began = nil, time.Now()
		}
		const ms = time.Millisecond

		add(1)
		check("no delay", ack{1, 0})
		q.delay.Store(int64(100 * ms))
		add(1)
		time.Sleep(50 * ms)
		add(2)
		time.Sleep(200 * ms)
		check("100 ms", ack{1, 100 * ms}, ack{2, 150 * ms})
		add(1)
		q.delay.Store(int64(300 * ms))
		add(2)
		time.Sleep(400 * ms)
		check("more later", ack{1, 100 * ms}, ack{2, 300 * ms})
		add(1)
		time.Sleep(50 * ms)
		q.delay.Store(0)
		add(2) // does not overtake
		time.Sleep(50 * ms)
		check("none any more", ack{1, 50 * ms}, ack{2, 50 * ms})
		if q.held.Load() != 0 || q.queue != nil {
			t.Errorf("%d held", q.held.Load())
		}

		q.delay.Store(int64(time.Hour))
		for range maxHeldAcks - 1 {
			q.add(func() {})
		}
		if q.full() {
			t.Error("full too early")
		}
		q.add(func() { acks = append(acks, ack{1, 0}) })
		if !q.full() {
			t.Error("not full")
		}
		stop()
		<-ended
		add(2)
		check("after the end", ack{1, 0}, ack{2, 0})
	})
}
