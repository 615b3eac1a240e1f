package soak

import (
	"math"
	"math/bits"
	"sync"
	"time"
)

// histogram counts durations in buckets whose widths are about 3 % of their value. Its
// methods may be called concurrently.
type histogram struct {
	mu      sync.Mutex
	buckets [64 * subBuckets]uint32
	count   int
}

// subBuckets is the number of buckets per power of two of microseconds.
const subBuckets = 32

// observe adds a duration. A negative one counts as 0.
func (h *histogram) observe(d time.Duration) {
	us := uint64(max(d.Microseconds(), 0))
	i := int(us)
	if us >= subBuckets {
		shift := bits.Len64(us) - 6 // us>>shift is below 2*subBuckets
		i = (shift+1)*subBuckets + int(us>>shift) - subBuckets
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.buckets[i]++
	h.count++
}

// take returns quantiles of the durations since the last call, NaN if there were none,
// in milliseconds, and their number.
func (h *histogram) take(quantiles ...float64) (values []float64, count int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range quantiles {
		values = append(values, h.quantile(q))
	}
	count, h.count = h.count, 0
	clear(h.buckets[:])
	return values, count
}

// quantile returns the upper end of the bucket that contains a quantile. mu is held.
func (h *histogram) quantile(q float64) float64 {
	rest := int(math.Ceil(q * float64(h.count)))
	for i, n := range h.buckets {
		if rest -= int(n); rest <= 0 && n > 0 {
			us := float64(i + 1)
			if i >= subBuckets {
				shift := i/subBuckets - 1
				us = float64(i%subBuckets+subBuckets+1) * math.Exp2(float64(shift))
			}
			return us / 1000
		}
	}
	return math.NaN()
}
