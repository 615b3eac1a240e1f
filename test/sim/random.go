package sim

import "time"

// random returns a number that depends on the seed, the key and the time, and so not
// on the order of calls at the same time.
func (sim *simulation) random(key string) uint64 {
	x := sim.plan.Seed ^ 0x9e3779b97f4a7c15*uint64(time.Since(sim.started))
	for i := range len(key) {
		x = (x ^ uint64(key[i])) * 0x100000001b3
	}
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// intn returns a random number in [0, n).
func (sim *simulation) intn(key string, n int) int { return int(sim.random(key) % uint64(n)) }

// chance returns true with a probability of perMille/1000.
func (sim *simulation) chance(key string, perMille int) bool {
	return sim.intn(key, 1000) < perMille
}

// duration returns a random duration in [from, to), in nanoseconds, so that two
// events hardly ever happen at the same time.
func (sim *simulation) duration(key string, from, to time.Duration) time.Duration {
	return from + time.Duration(sim.random(key)%uint64(to-from))
}

// faultsActive reports whether the run is in its fault phase. It depends on the time
// only, because any goroutine may call it.
func (sim *simulation) faultsActive() bool {
	since := time.Since(sim.started)
	return since >= warmup && since < warmup+faultPhase
}

// minorFaultsActive reports whether single messages and operations may fail or be
// late.
func (sim *simulation) minorFaultsActive() bool { return !sim.plan.MajorOnly && sim.faultsActive() }

// delay returns how long an operation takes: mostly usual/8 to usual and, while minor
// faults are active, in 3 % of cases up to worst.
func (sim *simulation) delay(key string, usual, worst time.Duration) time.Duration {
	if sim.minorFaultsActive() && sim.chance(key+"?", 30) {
		return sim.duration(key, usual, worst)
	}
	return sim.duration(key, usual/8, usual)
}
