package sim

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Plan is a seed and what is left out of its run, by default nothing.
type Plan struct {
	Seed       uint64
	Verbose    bool         // return the trace in Report.Log
	Trace      bool         // compute Report.TraceHash
	Jobs       int          // number of jobs that producers enqueue; 0: jobsPerYard
	SkipFaults map[int]bool // faults to leave out, by their number in the run
	MajorOnly  bool         // no minor faults: no message is lost, no answer is late
	NoCallers  bool         // no commands from callers

	Steps []Step                   // events that replace the random ones; nil: none
	Lasts map[job.ID]time.Duration // how long the first attempts of the Steps' jobs run; 0: random
}

// jobs returns how many jobs are enqueued.
func (p Plan) jobs() int {
	if p.Jobs > 0 {
		return p.Jobs
	}
	return jobsPerYard
}

// drawn returns how many jobs are enqueued at random times.
func (p Plan) drawn() int {
	if p.Steps != nil {
		return 0
	}
	return p.jobs()
}

// Command returns the shell command that repeats the plan.
func (p Plan) Command() string {
	if len(p.SkipFaults) == 0 && p.Jobs == 0 && !p.MajorOnly && !p.NoCallers {
		return fmt.Sprintf("make sim FIRST=%d SEEDS=1", p.Seed)
	}
	line := fmt.Sprintf("go test ./test/sim -run 'TestSeed$' -v -seed=%d", p.Seed)
	if p.Jobs > 0 {
		line += fmt.Sprintf(" -jobs=%d", p.Jobs)
	}
	if len(p.SkipFaults) > 0 {
		line += " -without=" + strings.Trim(strings.ReplaceAll(fmt.Sprint(slices.Sorted(maps.Keys(p.SkipFaults))), " ", ","), "[]")
	}
	if p.MajorOnly {
		line += " -quiet"
	}
	if p.NoCallers {
		line += " -alone"
	}
	return line
}

// nextFaultEnabled counts the next fault and reports whether the plan includes it.
// Faults that are left out are counted, so that the others keep their numbers while
// the run is otherwise the same.
func (sim *simulation) nextFaultEnabled() bool {
	sim.report.Faults++
	return !sim.plan.SkipFaults[sim.report.Faults]
}

// shrinkAttempts is the maximum number of plans that Shrink tries.
const shrinkAttempts = 120

// Shrink reduces a failing plan to what it needs to fail with the same kind of
// failure: it leaves out callers, minor faults, jobs and faults. play runs a plan.
func Shrink(failed Report, play func(Plan) Report) (Plan, Report) {
	least, report := failed.Plan, failed
	want := failureKind(failed)
	tries := 0
	try := func(change func(*Plan)) bool {
		if tries++; tries > shrinkAttempts {
			return false
		}
		p := least
		p.SkipFaults = maps.Clone(least.SkipFaults)
		if p.SkipFaults == nil {
			p.SkipFaults = map[int]bool{}
		}
		change(&p)
		r := play(p)
		if len(r.Failures) == 0 || failureKind(r) != want {
			return false
		}
		least, report = p, r
		return true
	}
	try(func(p *Plan) { p.NoCallers = true })
	try(func(p *Plan) { p.MajorOnly = true })
	for jobs := jobsPerYard / 2; jobs > 0 && try(func(p *Plan) { p.Jobs = jobs }); jobs /= 2 {
	}
	for _, width := range []int{8, 3, 1} { // groups of faults first
		for from := report.Faults - width + 1; from > 0; from -= width {
			try(func(p *Plan) {
				for n := from; n < from+width; n++ {
					p.SkipFaults[n] = true
				}
			})
		}
	}
	return least, report
}

var variableParts = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]+|[0-9]+|after all was healed: .*`)

// failureKind returns a report's first failure without ids and numbers.
func failureKind(r Report) string {
	if len(r.Failures) == 0 {
		return ""
	}
	return variableParts.ReplaceAllString(r.Failures[0], "·")
}
