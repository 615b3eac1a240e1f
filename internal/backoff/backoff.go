// Package backoff computes the pauses between retries.
//
// Pauses grow exponentially up to a maximum. Each is chosen at random from its
// upper half, so that clients that failed together do not retry together:
//
//	wait := backoff.Backoff{Base: 50 * time.Millisecond, Max: 2 * time.Second}
//	for try() != nil {
//		if err := backoff.Sleep(ctx, wait.Next()); err != nil {
//			return err
//		}
//	}
package backoff

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is a growing pause. It is used by one goroutine at a time.
type Backoff struct {
	Base time.Duration // of the first pause
	Max  time.Duration // no pause is longer

	// Rand returns a random number in [0, below); nil: math/rand's. The simulation
	// replays pauses with its own.
	Rand func(below int64) int64

	pause time.Duration // next pause before jitter; 0: Base
}

// Next returns how long to wait before the next attempt: between half and all of
// the current pause, which then doubles.
func (b *Backoff) Next() time.Duration {
	current := min(cmp.Or(b.pause, b.Base), b.Max)
	b.pause = b.Max
	if current < b.Max/2 { // does not overflow
		b.pause = 2 * current
	}
	random := b.Rand
	if random == nil {
		random = rand.Int64N
	}
	half := current / 2
	return half + time.Duration(random(int64(current-half)+1))
}

// Reset makes the next pause start at Base again. Call it after a success.
func (b *Backoff) Reset() { b.pause = 0 }

// Sleep blocks for d and returns nil, or returns ctx's error as soon as ctx ends.
func Sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
