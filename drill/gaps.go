package drill

import (
	"slices"
	"time"
)

// afterFault is how long after a fault what stands still is laid to it.
const afterFault = 30 * time.Second

// quiet is how long before the end of the loads the measuring ends: the last
// jobs stand alone.
const quiet = 100 * time.Millisecond

// gaps measures around every fault how long no job began and how long none was
// acknowledged, and holds it against the limits.
func (s *Stage) gaps(begins []int64) {
	var acks []int64
	for _, l := range s.loads {
		acks = append(acks, l.acks...)
	}
	slices.Sort(begins)
	slices.Sort(acks)
	dispatch, ack := make(map[string][]time.Duration), make(map[string][]time.Duration)
	var kinds []string
	for i, f := range s.faults {
		until := min(f.at+int64(afterFault), s.ended-int64(quiet))
		if i+1 < len(s.faults) {
			until = min(until, s.faults[i+1].at)
		}
		if !slices.Contains(kinds, f.what) {
			kinds = append(kinds, f.what)
		}
		dispatch[f.what] = append(dispatch[f.what], longest(begins, f.at, until))
		ack[f.what] = append(ack[f.what], longest(acks, f.at, until))
	}
	for _, k := range kinds {
		g := Gaps{Fault: k, Times: len(dispatch[k]), Dispatch: spread(dispatch[k]), Ack: spread(ack[k])}
		if l, ok := s.within[k]; ok {
			g.Limits = &l
			if l.Dispatch > 0 {
				s.Target(k+": dispatch gap p99", time.Duration(g.Dispatch.P99)*time.Millisecond, l.Dispatch)
			}
			if l.Ack > 0 {
				s.Target(k+": acknowledgement gap p99", time.Duration(g.Ack.P99)*time.Millisecond, l.Ack)
			}
		}
		s.report.Gaps = append(s.report.Gaps, g)
	}
}

// longest is the longest time between two neighbours of sorted moments that
// ends after from and begins before until.
func longest(moments []int64, from, until int64) (gap time.Duration) {
	first, _ := slices.BinarySearch(moments, from)
	for i := max(first, 1); i < len(moments) && moments[i-1] < until; i++ {
		gap = max(gap, time.Duration(moments[i]-moments[i-1]))
	}
	return gap
}
