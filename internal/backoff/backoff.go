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
	"context"
	"math/rand/v2"
	"time"
)

// Backoff is a growing pause. It is used by one goroutine at a time. The zero
// value pauses from 100 ms to 10 s.
type Backoff struct {
	Base   time.Duration // of the first pause; 0: 100 ms
	Max    time.Duration // no pause is longer; 0: 10 s
	Factor float64       // growth from one pause to the next, ≥ 1; 0: 2

	Rand func(below int64) int64 // random number in [0, below); nil: math/rand's

	pause time.Duration // next pause before jitter; 0: Base
}

// Next returns how long to wait before the next attempt: between half and all of
// the current pause, which then grows.
func (b *Backoff) Next() time.Duration {
	base, ceiling, factor := b.limits()
	if b.pause == 0 {
		b.pause = base
	}
	d := min(b.pause, ceiling)
	// Compared as floats, so that a huge factor does not overflow Duration.
	if grown := float64(d) * factor; grown < float64(ceiling) {
		b.pause = time.Duration(grown)
	} else {
		b.pause = ceiling
	}
	half, random := d/2, b.Rand
	if random == nil {
		random = rand.Int64N
	}
	return half + time.Duration(random(int64(d-half)+1))
}

// Reset makes the next pause start at Base again. Call it after a success.
func (b *Backoff) Reset() { b.pause = 0 }

func (b *Backoff) limits() (base, ceiling time.Duration, factor float64) {
	base, ceiling, factor = b.Base, b.Max, b.Factor
	if base <= 0 {
		base = 100 * time.Millisecond
	}
	if ceiling <= 0 {
		ceiling = 10 * time.Second
	}
	if factor < 1 {
		factor = 2
	}
	return base, max(base, ceiling), factor
}

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
