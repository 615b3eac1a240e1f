package sim

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "play this seed alone and tell what happens")
	firstFlag = flag.Uint64("first", 1, "the first seed that is played")
	seedsFlag = flag.Int("seeds", 1000, "how many seeds are played")

	jobsFlag    = flag.Int("jobs", 0, "with -seed: how many jobs are enqueued; 0: all")
	withoutFlag = flag.String("without", "", "with -seed: numbers of faults that are left out, as in 3,5")
	quietFlag   = flag.Bool("quiet", false, "with -seed: nothing goes wrong but the faults")
	aloneFlag   = flag.Bool("alone", false, "with -seed: no callers")

	shrinkFlag = flag.Bool("shrink", true, "look for the least of a story that still fails")
	twiceFlag  = flag.Int("twice", 3, "how many seeds TestTwice plays")
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // many short lives: memory is cheaper than collecting it
	flag.Parse()
	os.Exit(m.Run())
}

// play runs one plan in a bubble of its own.
func play(t *testing.T, p Plan) (r Report) {
	synctest.Test(t, func(*testing.T) { r = Run(p) })
	return r
}

// TestSeeds plays many seeds. Of one that fails the least is told that still
// does, with the line that repeats it. One seed alone tells its story.
func TestSeeds(t *testing.T) {
	const shards = 2 // a seed keeps one core busy
	sums := make([]Report, shards)
	t.Run("all", func(t *testing.T) {
		for shard := range shards {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				for i := shard; i < *seedsFlag && !t.Failed(); i += shards {
					r := play(t, Plan{Seed: *firstFlag + uint64(i), Talk: *seedsFlag == 1})
					for _, line := range r.Log {
						t.Log(line)
					}
					if len(r.Failures) > 0 {
						complain(t, r)
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

// complain tells of a failure, and of the least that brings it about.
func complain(t *testing.T, r Report) {
	t.Helper()
	t.Errorf("%s\n%s", r.Line(), strings.Join(r.Failures, "\n"))
	if !*shrinkFlag {
		return
	}
	if least, r := Shrink(r, func(p Plan) Report { return play(t, p) }); least.Line() != r.Line() || len(least.Without) > 0 {
		t.Logf("so does, smaller:\n%s\n%s", least.Line(), strings.Join(r.Failures, "\n"))
	}
}

// TestSeed plays the seed that is asked for, and tells all of it.
func TestSeed(t *testing.T) {
	if *seedFlag == 0 {
		t.Skip("plays the seed that -seed names")
	}
	p := Plan{Seed: *seedFlag, Talk: true, Jobs: *jobsFlag, Quiet: *quietFlag, Alone: *aloneFlag, Without: map[int]bool{}}
	for number := range strings.SplitSeq(*withoutFlag, ",") {
		if n, err := strconv.Atoi(number); err == nil {
			p.Without[n] = true
		}
	}
	r := play(t, p)
	for _, line := range r.Log {
		t.Log(line)
	}
	for _, why := range r.Failures {
		t.Error(why)
	}
	t.Logf("seed %d, story %016x: %s", r.Seed, r.Story, r.figures())
}

// TestTwice: a seed is one story, to the nanosecond.
func TestTwice(t *testing.T) {
	for i := range uint64(*twiceFlag) {
		p := Plan{Seed: *firstFlag + i, Trace: true}
		if a, b := play(t, p), play(t, p); a.Story != b.Story || a.figures() != b.figures() {
			t.Errorf("seed %d is played in two ways:\n%s\n%s", p.Seed, a.figures(), b.figures())
		}
	}
}
