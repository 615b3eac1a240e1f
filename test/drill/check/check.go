// Package check judges the behavior of a cluster by evidence from outside. It
// uses no code of the cluster: each check is a function from what publishers,
// witnesses, samples and history report to a list of violations.
package check

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Run is one run of a job as recorded by its worker.
type Run struct {
	Job        string
	Fence      uint64 // grows with each dispatch of a job
	Begin, End int64  // by the host's clock, in nanoseconds; End is 0 if the worker died
	Queue      string
	Key        string // of its limits; "" if the witness does not record it
	Worker     string // the witness file
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

// Lease is an acquisition or renewal of the authority, as history reports it.
type Lease struct {
	Acquired bool // else renewed
	Owner    string
	ID       string // <epoch>-<owner>
	At       int64  // by the host's clock, in nanoseconds
}

// View is the authority that a node reported when it was sampled.
type View struct {
	Node  string
	Life  int // number of the node's start; after a restart it may know less
	Owner string
	Epoch uint64
	At    int64
}

// Leases checks the history of the authority against the rules of a lock, and the views
// of the nodes against that history. An acquisition must have a higher epoch than all
// before it, and only the current owner can renew its lease. Leases returns the
// violations.
func Leases(history []Lease, views []View) (wrong []string) {
	owners := make(map[uint64]string)
	last := uint64(0) // the current epoch
	for _, l := range history {
		text, _, _ := strings.Cut(l.ID, "-")
		epoch, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return []string{fmt.Sprintf("the lease %q has no epoch", l.ID)}
		}
		if !l.Acquired {
			if epoch != last || owners[epoch] != l.Owner {
				wrong = append(wrong, fmt.Sprintf("%s renewed epoch %d, and %s had acquired epoch %d", l.Owner, epoch, owners[last], last))
			}
			continue
		}
		if epoch <= last {
			wrong = append(wrong, fmt.Sprintf("epoch %d follows epoch %d", epoch, last))
		}
		if owner, taken := owners[epoch]; taken && owner != l.Owner {
			wrong = append(wrong, fmt.Sprintf("epoch %d was acquired by %s and by %s", epoch, owner, l.Owner))
		}
		owners[epoch], last = l.Owner, epoch
	}
	return append(wrong, checkViews(owners, views)...)
}

// checkViews returns the views of an authority that history does not have, and
// those with a lower epoch than the same node showed before in the same life.
func checkViews(owners map[uint64]string, views []View) (wrong []string) {
	type life struct {
		node string
		n    int
	}
	highest := make(map[life]uint64)
	for _, v := range views {
		if v.Epoch == 0 {
			continue
		}
		if owner, acquired := owners[v.Epoch]; !acquired || owner != v.Owner {
			wrong = append(wrong, fmt.Sprintf("%s showed %s with epoch %d; history has %q", v.Node, v.Owner, v.Epoch, owner))
		}
		l := life{v.Node, v.Life}
		if v.Epoch < highest[l] {
			wrong = append(wrong, fmt.Sprintf("%s showed epoch %d after %d", v.Node, v.Epoch, highest[l]))
		}
		highest[l] = max(highest[l], v.Epoch)
	}
	return wrong
}

// porcupineTimeout limits one search, which may take exponential time.
const porcupineTimeout = 20 * time.Second

// Operation is one attempt to create a name that must not exist or to remove one
// that must exist. Which attempts succeed reveals the order in which the cluster
// executed them.
type Operation struct {
	Writer   int
	Name     string
	Create   bool // else remove
	Answer   Answer
	From, To int64 // request and answer, by the host's clock in nanoseconds
}

// Answer is the result of an operation.
type Answer int

const (
	Unknown Answer = iota // no answer, or an inconclusive one: it may take effect at any later time
	Done
	Refused // the name exists already, or does not exist
)

// Linearizable reports whether some order of the operations explains every
// answer. If the search exceeds its time limit, ok is false and undecided true.
func Linearizable(changes []Operation) (ok, undecided bool) {
	var ops []porcupine.Operation
	for _, c := range changes {
		op := porcupine.Operation{ClientId: c.Writer, Input: change{c.Name, c.Create}, Output: c.Answer, Call: c.From, Return: c.To}
		if c.Answer == Unknown {
			op.Return = math.MaxInt64
		}
		ops = append(ops, op)
	}
	result := porcupine.CheckOperationsTimeout(register, ops, porcupineTimeout)
	return result == porcupine.Ok, result == porcupine.Unknown
}

// change is the input of an operation on the register.
type change struct {
	name   string
	create bool
}

// register models a set of names; each name is a separate register.
var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		of := make(map[string][]porcupine.Operation)
		for _, op := range history {
			name := op.Input.(change).name
			of[name] = append(of[name], op)
		}
		for _, name := range slices.Sorted(maps.Keys(of)) {
			parts = append(parts, of[name])
		}
		return parts
	},
	Init: func() any { return false },
	Step: func(state, input, output any) (bool, any) {
		there, c := state.(bool), input.(change)
		switch output.(Answer) {
		case Done:
			return there != c.create, c.create
		case Refused:
			return there == c.create, there
		}
		return true, c.create // it may have taken effect; a repetition changes nothing
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprint(input, output) },
}

// Sample is the readiness that a node reported.
type Sample struct {
	Node    string
	At      int64 // by the host's clock, in nanoseconds
	Ready   bool
	Reasons string
}

// Gap is a time in which no job began although jobs were due.
type Gap struct{ From, To int64 }

// Gaps returns the times longer than minimum between consecutive moments that lie
// within from and to. The moments must be sorted.
func Gaps(moments []int64, minimum time.Duration, from, to int64) (gaps []Gap) {
	for i := 1; i < len(moments); i++ {
		a, b := moments[i-1], moments[i]
		if a >= from && b <= to && b-a > int64(minimum) {
			gaps = append(gaps, Gap{a, b})
		}
	}
	return gaps
}

// ReadinessErrors returns the nodes that reported themselves ready during a gap. A
// node may take grace from the begin of the gap to detect it.
func ReadinessErrors(gaps []Gap, samples []Sample, grace time.Duration) (wrong []string) {
	for _, g := range gaps {
		reported := make(map[string]bool)
		for _, s := range samples {
			if s.At < g.From+int64(grace) || s.At > g.To-int64(time.Second) || !s.Ready || reported[s.Node] {
				continue
			}
			reported[s.Node] = true
			wrong = append(wrong, fmt.Sprintf("%s reported itself ready %.1f s into a gap of %.1f s in which no job began",
				s.Node, float64(s.At-g.From)/1e9, float64(g.To-g.From)/1e9))
		}
	}
	return wrong
}
