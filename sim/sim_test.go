package sim

import (
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "play this seed alone and tell what happens")
	firstFlag = flag.Uint64("first", 1, "the first seed that is played")
	seedsFlag = flag.Int("seeds", 1000, "how many seeds are played")
)

// play runs one seed in a bubble of its own.
func play(t *testing.T, seed uint64, talk bool) (r Report) {
	synctest.Test(t, func(*testing.T) { r = Run(seed, talk) })
	return r
}

// TestSeeds plays many seeds. What goes wrong is told with the line that
// repeats it.
func TestSeeds(t *testing.T) {
	const shards = 2 // a seed keeps one core busy
	sums := make([]Report, shards)
	t.Run("all", func(t *testing.T) {
		for shard := range shards {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				for i := shard; i < *seedsFlag && !t.Failed(); i += shards {
					r := play(t, *firstFlag+uint64(i), false)
					for _, why := range r.Failures {
						t.Errorf("go test ./sim -run 'TestSeed$' -v -seed=%d\n%s", r.Seed, why)
					}
					sums[shard].add(&r)
				}
			})
		}
	})
	var sum Report
	for i := range sums {
		sum.add(&sums[i])
	}
	t.Logf("%d seeds: %s", *seedsFlag, sum.figures())
	// A simulation in which nothing happens finds nothing.
	if n := *seedsFlag; !t.Failed() && n >= 100 && (sum.Accepted < 40*n || sum.Tenures < 2*n || sum.Crashes < n || sum.Copies < n || sum.Stale < n/4) {
		t.Errorf("there is too little in it")
	}
}

// TestSeed plays the seed that is asked for, and tells all of it.
func TestSeed(t *testing.T) {
	if *seedFlag == 0 {
		t.Skip("plays the seed that -seed names")
	}
	r := play(t, *seedFlag, true)
	for _, line := range r.Log {
		t.Log(line)
	}
	for _, why := range r.Failures {
		t.Error(why)
	}
	t.Logf("seed %d, trace %016x: %s", r.Seed, r.Trace, r.figures())
}

// TestTwice: a seed is one story, to the nanosecond.
func TestTwice(t *testing.T) {
	for i := range uint64(max(*seedsFlag/40, 1)) {
		seed := *firstFlag + i
		if a, b := play(t, seed, false), play(t, seed, false); a.Trace != b.Trace || a.figures() != b.figures() {
			t.Errorf("seed %d is played in two ways:\n%s\n%s", seed, a.figures(), b.figures())
		}
	}
}
