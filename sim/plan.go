package sim

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Plan is what is played of a seed: everything, unless a story that fails is made
// smaller.
type Plan struct {
	Seed    uint64
	Talk    bool         // tell what happens
	Trace   bool         // hash what happens
	Jobs    int          // that producers enqueue; 0: jobsPerYard
	Without map[int]bool // faults that are left out, by their numbers in the story
	Quiet   bool         // nothing goes wrong but the faults: no message is lost, no answer late
	Alone   bool         // callers stay away
}

func (p Plan) jobs() int {
	if p.Jobs > 0 {
		return p.Jobs
	}
	return jobsPerYard
}

// Line is what repeats the plan in a shell.
func (p Plan) Line() string {
	if len(p.Without) == 0 && p.Jobs == 0 && !p.Quiet && !p.Alone {
		return fmt.Sprintf("make sim FIRST=%d SEEDS=1", p.Seed)
	}
	line := fmt.Sprintf("go test ./sim -run 'TestSeed$' -v -seed=%d", p.Seed)
	if p.Jobs > 0 {
		line += fmt.Sprintf(" -jobs=%d", p.Jobs)
	}
	if len(p.Without) > 0 {
		line += " -without=" + strings.Trim(strings.ReplaceAll(fmt.Sprint(slices.Sorted(maps.Keys(p.Without))), " ", ","), "[]")
	}
	if p.Quiet {
		line += " -quiet"
	}
	if p.Alone {
		line += " -alone"
	}
	return line
}

// strikes tells whether the next fault is played. Whatever is left out, the
// others keep their numbers for as long as the story goes the same way.
func (y *yard) strikes() bool {
	y.report.Faults++
	return !y.plan.Without[y.report.Faults]
}

// shrinkTries bounds how long a smaller story is looked for.
const shrinkTries = 120

// Shrink leaves out of a failing story what it fails without: callers, small
// mishaps, jobs, faults. play plays a plan; what comes out fails in the same
// words.
func Shrink(failed Report, play func(Plan) Report) (Plan, Report) {
	least, report := failed.Plan, failed
	want := complaint(failed)
	tries := 0
	try := func(change func(*Plan)) bool {
		if tries++; tries > shrinkTries {
			return false
		}
		p := least
		p.Without = maps.Clone(least.Without)
		if p.Without == nil {
			p.Without = map[int]bool{}
		}
		change(&p)
		r := play(p)
		if len(r.Failures) == 0 || complaint(r) != want {
			return false
		}
		least, report = p, r
		return true
	}
	try(func(p *Plan) { p.Alone = true })
	try(func(p *Plan) { p.Quiet = true })
	for jobs := jobsPerYard / 2; jobs > 0 && try(func(p *Plan) { p.Jobs = jobs }); jobs /= 2 {
	}
	for _, width := range []int{8, 3, 1} { // faults by the handful first
		for from := report.Faults - width + 1; from > 0; from -= width {
			try(func(p *Plan) {
				for n := from; n < from+width; n++ {
					p.Without[n] = true
				}
			})
		}
	}
	return least, report
}

var particulars = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]+|[0-9]+|after all was healed: .*`)

// complaint is what is wrong, without names and numbers.
func complaint(r Report) string {
	if len(r.Failures) == 0 {
		return ""
	}
	return particulars.ReplaceAllString(r.Failures[0], "·")
}
