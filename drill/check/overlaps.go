package check

import (
	"cmp"
	"fmt"
	"slices"
)

// Run is one run of a job as its worker wrote it down.
type Run struct {
	Job        string
	Fence      uint64 // grows with each dispatch of a job
	Begin, End int64  // by the host's clock, in nanoseconds; End 0: its worker died
}

// End is an end of a dispatch as history tells it.
type End struct {
	Job    string
	Failed bool
	Reason string
	At     int64 // by the host's clock, in nanoseconds
}

// Overlap is two runs of a job at the same time.
type Overlap struct {
	Job    string
	For    int64  // nanoseconds
	Reason string // why history gave up the first; "": it did not
}

func (o Overlap) String() string {
	return fmt.Sprintf("job %s ran twice at once for %d ms: %s", o.Job, o.For/1e6, cmp.Or(o.Reason, "for no reason that history gives"))
}

// slack is how far history's clock, read by the authority, and the witness's,
// read before it writes, may be apart on one host.
const slack = int64(50e6)

// Overlaps lists the runs of a job that went on while a later one had begun. A
// second run is justified if history gave up a dispatch of the job after the
// first had begun and before the second did.
func Overlaps(runs []Run, ends []End) (overlaps []Overlap) {
	failed := make(map[string][]End)
	for _, e := range ends {
		if e.Failed {
			failed[e.Job] = append(failed[e.Job], e)
		}
	}
	for id, of := range byJob(runs) {
		for i, first := range of {
			for _, second := range of[i+1:] {
				if first.End <= second.Begin { // also if nobody saw it end
					continue
				}
				o := Overlap{Job: id, For: min(first.End, max(second.End, second.Begin)) - second.Begin}
				for _, e := range failed[id] {
					if e.At > first.Begin-slack && e.At < second.Begin+slack {
						o.Reason = e.Reason
					}
				}
				overlaps = append(overlaps, o)
			}
		}
	}
	slices.SortFunc(overlaps, func(a, b Overlap) int { return cmp.Compare(a.Job, b.Job) })
	return overlaps
}

// SameDispatch lists the jobs that began more than once under one fence: a
// dispatch is one placing, and whoever got it runs it once.
func SameDispatch(runs []Run) (jobs []string) {
	type dispatch struct {
		job   string
		fence uint64
	}
	seen := make(map[dispatch]bool)
	for _, r := range runs {
		d := dispatch{r.Job, r.Fence}
		if seen[d] {
			jobs = append(jobs, r.Job)
		}
		seen[d] = true
	}
	return jobs
}

// byJob groups runs, each group in the order of their begins.
func byJob(runs []Run) map[string][]Run {
	groups := make(map[string][]Run)
	for _, r := range runs {
		groups[r.Job] = append(groups[r.Job], r)
	}
	for _, g := range groups {
		slices.SortFunc(g, func(a, b Run) int { return cmp.Compare(a.Begin, b.Begin) })
	}
	return groups
}
