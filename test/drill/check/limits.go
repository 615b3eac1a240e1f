package check

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// Bounds are the settings of a limit that may hold from From to To, by the host's clock in
// nanoseconds: from the request that set them to the answer to the request that replaced them.
type Bounds struct {
	From, To int64
	Total    int     // jobs that run at the same time
	PerKey   int     // the same, of each key
	Rate     float64 // starts per second
	Burst    float64 // starts at once
}

// ConcurrencyErrors returns the begins of runs at which more runs, of all keys or of the same
// key, were active than any bounds allow that may have held when the ledger started the job,
// at most delay earlier. Runs without an end do not count: their worker was killed.
func ConcurrencyErrors(runs []Run, bounds []Bounds, delay time.Duration) (wrong []string) {
	type edge struct {
		at   int64
		step int
		run  Run
	}
	var edges []edge
	for _, r := range runs {
		if r.End > 0 && r.Begin > 0 {
			edges = append(edges, edge{r.Begin, 1, r}, edge{r.End, -1, r})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(cmp.Compare(a.at, b.at), a.step-b.step) })
	active, ofKey := 0, make(map[string]int)
	for _, e := range edges {
		active += e.step
		ofKey[e.run.Key] += e.step
		if e.step < 0 {
			continue
		}
		allowed := loosest(bounds, e.at-int64(delay), e.at)
		if active > allowed.Total {
			wrong = append(wrong, fmt.Sprintf("%d jobs of a limit with the total %d ran when job %s began", active, allowed.Total, e.run.Job))
		}
		if n := ofKey[e.run.Key]; n > allowed.PerKey {
			wrong = append(wrong, fmt.Sprintf("%d jobs with the key %s ran when job %s began, at most %d of a key may", n, e.run.Key, e.run.Job, allowed.PerKey))
		}
	}
	return wrong
}

// RateErrors returns the starts that exceed the rate: those at which, for some earlier start,
// more jobs have started since than rate × time + burst. The starts are times by the host's
// clock, in nanoseconds: those at which runs began, or of the assignments in history. A start
// may be up to delay later than the ledger has started the job.
func RateErrors(starts []int64, bounds []Bounds, delay time.Duration) (wrong []string) {
	starts = slices.Sorted(slices.Values(starts))
	const rounding = 1e-6
	level, last := 0.0, int64(math.MinInt64) // starts that the rate has not made up for yet
	for _, at := range starts {
		if last != math.MinInt64 {
			level = max(0, level-allowance(bounds, last, at, delay))
		}
		level, last = level+1, at
		allowed := loosest(bounds, at-int64(delay), at)
		if late := allowed.Rate * delay.Seconds(); level > allowed.Burst+late+rounding {
			wrong = append(wrong, fmt.Sprintf("%.2f more jobs have started than a rate of %g/s with a burst of %g and a delay of %s allows",
				level-allowed.Burst-late, allowed.Rate, allowed.Burst, delay))
		}
	}
	return wrong
}

// allowance returns how many jobs may start between two moments at the highest rates that may
// hold. Bounds that hold until delay before from are included.
func allowance(bounds []Bounds, from, to int64, delay time.Duration) (jobs float64) {
	moments := []int64{from, to}
	for _, b := range bounds {
		for _, at := range []int64{b.From, min(b.To, math.MaxInt64-int64(delay)) + int64(delay)} {
			if at > from && at < to {
				moments = append(moments, at)
			}
		}
	}
	slices.Sort(moments)
	for i := 1; i < len(moments); i++ {
		a, b := moments[i-1], moments[i]
		jobs += loosest(bounds, a-int64(delay), b).Rate * float64(b-a) / 1e9
	}
	return jobs
}

// loosest returns the loosest of each bound that may hold at some time from one moment to
// another.
func loosest(bounds []Bounds, from, to int64) (l Bounds) {
	for _, b := range bounds {
		if b.From <= to && b.To >= from {
			l.Total, l.PerKey = max(l.Total, b.Total), max(l.PerKey, b.PerKey)
			l.Rate, l.Burst = max(l.Rate, b.Rate), max(l.Burst, b.Burst)
		}
	}
	return l
}

// LimitOperation is a change of a limit's total, or the start or the end of a job that uses
// the limit.
type LimitOperation struct {
	Client   int
	Kind     LimitOperationKind
	Total    int   // of a change
	From, To int64 // the operation took effect between these moments, by the host's clock
}

// LimitOperationKind is what a [LimitOperation] does.
type LimitOperationKind int

// The kinds of operations.
const (
	SetTotal LimitOperationKind = iota
	StartJob
	EndJob
)

// LimitLinearizable reports whether the operations have an order in which no job starts while
// as many jobs run as the total allows. If the search exceeds its time limit, ok is false and
// undecided true.
func LimitLinearizable(operations []LimitOperation, total int) (ok, undecided bool) {
	var ops []porcupine.Operation
	for _, o := range operations {
		ops = append(ops, porcupine.Operation{ClientId: o.Client, Input: o, Call: o.From, Return: o.To})
	}
	type state struct{ total, running int }
	model := porcupine.Model{
		Init: func() any { return state{total: total} },
		Step: func(before, input, _ any) (bool, any) {
			s, o := before.(state), input.(LimitOperation)
			switch o.Kind {
			case SetTotal:
				s.total = o.Total
				return true, s
			case StartJob:
				s.running++
				return s.running <= s.total, s
			default:
				s.running--
				return s.running >= 0, s
			}
		},
	}
	result := porcupine.CheckOperationsTimeout(model, ops, porcupineTimeout)
	return result == porcupine.Ok, result == porcupine.Unknown
}

// LimitOperations returns the starts and ends of the runs of workers that run one job at a
// time. A job starts after the previous run of its worker has ended, and ends before the next
// one begins. failed has the jobs with a dispatch that ended without its worker: their ends
// may be as early as their begins.
func LimitOperations(runs []Run, failed map[string]bool) (operations []LimitOperation) {
	workers := make(map[string][]Run)
	for _, r := range runs {
		workers[r.Worker] = append(workers[r.Worker], r)
	}
	client := 0
	for _, runs := range workers {
		slices.SortFunc(runs, func(a, b Run) int { return cmp.Compare(a.Begin, b.Begin) })
		free := int64(0)
		for i, r := range runs {
			next := int64(math.MaxInt64)
			if i+1 < len(runs) {
				next = runs[i+1].Begin
			}
			ended := cmp.Or(r.End, r.Begin)
			operations = append(operations, LimitOperation{Client: client, Kind: StartJob, From: free, To: r.Begin})
			from := ended
			if failed[r.Job] {
				from = r.Begin
			}
			operations = append(operations, LimitOperation{Client: client, Kind: EndJob, From: from, To: max(next, from)})
			free = ended
		}
		client++
	}
	return operations
}
