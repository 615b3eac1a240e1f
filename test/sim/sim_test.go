package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "the seed that TestSeed runs")
	firstFlag = flag.Uint64("first", 1, "the first seed that TestSeeds runs")
	seedsFlag = flag.Int("seeds", 400, "how many seeds TestSeeds runs; 1 logs the trace")

	jobsFlag    = flag.Int("jobs", 0, "with -seed: how many jobs are enqueued; 0: all")
	withoutFlag = flag.String("without", "", "with -seed: numbers of faults to leave out, as in 3,5")
	quietFlag   = flag.Bool("quiet", false, "with -seed: no minor faults")
	aloneFlag   = flag.Bool("alone", false, "with -seed: no callers")

	shrinkFlag = flag.Bool("shrink", true, "reduce a failing seed to the smallest plan that still fails")
	dicesFlag  = flag.Int("dices", 20, "how many seeds TestPlans runs each plan with, from its own on; 1 logs the trace")
	repeatFlag = flag.Int("twice", 3, "how many seeds TestDeterministic runs twice")
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // runs are short and allocate much
	flag.Parse()
	os.Exit(m.Run())
}

// play runs one plan in its own bubble.
func play(t *testing.T, p Plan) (r Report) {
	synctest.Test(t, func(*testing.T) { r = Run(p) })
	return r
}

// TestSeeds runs many seeds. For one that fails it also logs the smallest plan that
// still fails, with the command that repeats it.
func TestSeeds(t *testing.T) {
	const shards = 2 // a seed keeps one core busy
	sums := make([]Report, shards)
	t.Run("all", func(t *testing.T) {
		for shard := range shards {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				for i := shard; i < *seedsFlag && !t.Failed(); i += shards {
					r := play(t, Plan{Seed: *firstFlag + uint64(i), Verbose: *seedsFlag == 1})
					for _, line := range r.Log {
						t.Log(line)
					}
					if len(r.Failures) > 0 {
						reportFailure(t, r)
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
	t.Logf("%d seeds: %s", *seedsFlag, sum.summary())
	// A simulation in which little happens finds nothing.
	if n := *seedsFlag; !t.Failed() && n >= 100 && (sum.Accepted < 40*n || sum.Packed < n || sum.Tenures < 2*n || sum.Crashes < n || sum.Restarts < n || sum.StaleOutcomes < n/8) {
		t.Errorf("too few jobs, packed records, tenures, crashes, restarts or stale outcomes in %d seeds", n)
	}
	if n := *seedsFlag; !t.Failed() && n >= 100 && sum.Clocks.tooFew(n) {
		t.Errorf("not tried: a fault of clocks, or what they may affect, is too rare in %d seeds", n)
	}
}

// reportFailure reports a failed run, and the smallest plan that still fails.
func reportFailure(t *testing.T, r Report) {
	t.Helper()
	t.Errorf("%s\n%s", r.Command(), strings.Join(r.Failures, "\n"))
	if !*shrinkFlag {
		return
	}
	if least, r := Shrink(r, func(p Plan) Report { return play(t, p) }); least.Command() != r.Command() || len(least.SkipFaults) > 0 {
		t.Logf("reduced:\n%s\n%s", least.Command(), strings.Join(r.Failures, "\n"))
	}
}

// TestSeed runs the seed given by -seed and logs its trace.
func TestSeed(t *testing.T) {
	if *seedFlag == 0 {
		t.Skip("needs -seed")
	}
	p := Plan{Seed: *seedFlag, Verbose: true, Jobs: *jobsFlag, MajorOnly: *quietFlag, NoCallers: *aloneFlag, SkipFaults: map[int]bool{}}
	for number := range strings.SplitSeq(*withoutFlag, ",") {
		if n, err := strconv.Atoi(number); err == nil {
			p.SkipFaults[n] = true
		}
	}
	r := play(t, p)
	for _, line := range r.Log {
		t.Log(line)
	}
	for _, failure := range r.Failures {
		t.Error(failure)
	}
	t.Logf("seed %d, trace hash %016x: %s", r.Seed, r.TraceHash, r.summary())
}

// TestPlans runs the plans in testdata, which reproduce failures that were found once,
// each with many seeds.
func TestPlans(t *testing.T) {
	files, err := filepath.Glob("testdata/plans/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no plans: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p, err := ParsePlan(string(text))
			if err != nil {
				t.Fatal(err)
			}
			untried := 0
			for range *dicesFlag {
				p.Verbose = *dicesFlag == 1
				r := play(t, p)
				for _, line := range r.Log {
					t.Log(line)
				}
				if len(r.Failures) > 0 {
					t.Fatalf("seed %d: %s", p.Seed, strings.Join(r.Failures, "\n"))
				}
				if r.Untried != "" {
					t.Logf("seed %d: %s", p.Seed, r.Untried)
					untried++
				}
				p.Seed++
			}
			if untried > *dicesFlag/10 { // such a plan no longer shows what it was written for
				t.Errorf("the plan could not be tried with %d of %d seeds", untried, *dicesFlag)
			}
		})
	}
}

// TestDeterministic verifies that two runs of a seed are the same, to the nanosecond.
func TestDeterministic(t *testing.T) {
	for i := range uint64(*repeatFlag) {
		p := Plan{Seed: *firstFlag + i, Trace: true}
		if a, b := play(t, p), play(t, p); a.TraceHash != b.TraceHash || a.summary() != b.summary() {
			t.Errorf("two runs of seed %d differ:\n%s\n%s", p.Seed, a.summary(), b.summary())
		}
	}
}
