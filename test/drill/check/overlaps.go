package check

import (
	"cmp"
	"fmt"
	"slices"
)

// Run is one run of a job as recorded by its worker.
type Run struct {
	Job        string
	Fence      uint64 // grows with each dispatch of a job
	Begin, End int64  // by the host's clock, in nanoseconds; End is 0 if the worker died
}

// End is the end of a dispatch as history reports it.
type End struct {
	Job    string
	Failed bool
	Reason string
	At     int64 // by the host's clock, in nanoseconds
}

// Overlap is a time in which two runs of a job were active.
type Overlap struct {
	Job    string
	For    int64  // nanoseconds
	Reason string // why history ended the first dispatch; "" if it had not
}

func (o Overlap) String() string {
	return fmt.Sprintf("two runs of job %s overlapped for %d ms: %s", o.Job, o.For/1e6, cmp.Or(o.Reason, "no reason in history"))
}

// clockSlack is the tolerance, in nanoseconds, between times from history, read by
// the authority, and times from witnesses.
const clockSlack = int64(50e6)

// Overlaps returns the runs of a job that were still active when a later one
// began. The overlap is justified if history has ended a dispatch of the job
// between the two begins.
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
				if first.End <= second.Begin { // or its end is unknown
					continue
				}
				o := Overlap{Job: id, For: min(first.End, max(second.End, second.Begin)) - second.Begin}
				for _, e := range failed[id] {
					if e.At > first.Begin-clockSlack && e.At < second.Begin+clockSlack {
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

// SameDispatch returns the jobs that began more than once under the same fence.
// A dispatch must run at most once.
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

// byJob groups runs by job, each group in order of begin.
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
