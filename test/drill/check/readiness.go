package check

import (
	"fmt"
	"time"
)

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
