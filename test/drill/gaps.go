package drill

import (
	"slices"
	"time"
)

// faultWindow is the time after a fault in which gaps are attributed to it.
const faultWindow = 30 * time.Second

// quietPeriod is the time before the end of the loads in which gaps do not count,
// because the load decreases.
const quietPeriod = 100 * time.Millisecond

// measureGaps measures, around every fault, the longest times in which no job began
// and in which none was acknowledged, and compares them with the targets.
func (h *Harness) measureGaps(begins []int64) {
	var acks []int64
	for _, l := range h.loads {
		acks = append(acks, l.acks...)
	}
	slices.Sort(begins)
	slices.Sort(acks)
	dispatch, ack := make(map[string][]time.Duration), make(map[string][]time.Duration)
	var kinds []string
	for i, f := range h.faults {
		until := min(f.at+int64(faultWindow), h.loadsEndedAt-int64(quietPeriod))
		if i+1 < len(h.faults) {
			until = min(until, h.faults[i+1].at)
		}
		if !slices.Contains(kinds, f.what) {
			kinds = append(kinds, f.what)
		}
		dispatch[f.what] = append(dispatch[f.what], longest(begins, f.at, until))
		ack[f.what] = append(ack[f.what], longest(acks, f.at, until))
	}
	for _, k := range kinds {
		g := Gaps{Fault: k, Times: len(dispatch[k]), Dispatch: spread(dispatch[k]), Ack: spread(ack[k])}
		if l, ok := h.targets[k]; ok {
			g.Limits = &l
			if l.Dispatch > 0 {
				h.Target(k+": dispatch gap p99", time.Duration(g.Dispatch.P99)*time.Millisecond, l.Dispatch)
			}
			if l.Ack > 0 {
				h.Target(k+": acknowledgement gap p99", time.Duration(g.Ack.P99)*time.Millisecond, l.Ack)
			}
		}
		h.report.Gaps = append(h.report.Gaps, g)
	}
}

// longest returns the longest time between two consecutive moments that ends after
// from and begins before until. The moments must be sorted.
func longest(moments []int64, from, until int64) (gap time.Duration) {
	first, _ := slices.BinarySearch(moments, from)
	for i := max(first, 1); i < len(moments) && moments[i-1] < until; i++ {
		gap = max(gap, time.Duration(moments[i]-moments[i-1]))
	}
	return gap
}
