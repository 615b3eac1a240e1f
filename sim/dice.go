package sim

import "time"

// dice gives a number that goes by the seed, by what is asked and by when: two
// who ask at the same time get what they would have got in the other order.
func (y *yard) dice(key string) uint64 {
	x := y.plan.Seed ^ 0x9e3779b97f4a7c15*uint64(time.Since(y.began))
	for i := range len(key) {
		x = (x ^ uint64(key[i])) * 0x100000001b3
	}
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// pick throws for a number below n.
func (y *yard) pick(key string, n int) int { return int(y.dice(key) % uint64(n)) }

// chance is true in so many of a thousand cases.
func (y *yard) chance(key string, ofThousand int) bool { return y.pick(key, 1000) < ofThousand }

// between throws for a time; to the nanosecond, so that hardly ever two things
// happen at once.
func (y *yard) between(key string, from, to time.Duration) time.Duration {
	return from + time.Duration(y.dice(key)%uint64(to-from))
}

// storms tells that things may go wrong. It goes by the clock alone, because
// whoever asks may do so beside the loop.
func (y *yard) storms() bool {
	since := time.Since(y.began)
	return since >= calmFor && since < calmFor+stormFor
}

// mishaps tells that small things may go wrong, too.
func (y *yard) mishaps() bool { return !y.plan.Quiet && y.storms() }

// delay is how long something takes: mostly little, at times much.
func (y *yard) delay(key string, usual, worst time.Duration) time.Duration {
	if y.mishaps() && y.chance(key+"?", 30) {
		return y.between(key, usual, worst)
	}
	return y.between(key, usual/8, usual)
}
