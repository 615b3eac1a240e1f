package check

import (
	"fmt"
	"time"
)

// Look is what a node said of its readiness when it was asked.
type Look struct {
	Node    string
	At      int64 // by the host's clock, in nanoseconds
	Ready   bool
	Reasons string
}

// Still is a time in which no job began though there were jobs.
type Still struct{ From, Til int64 }

// Stills finds the times longer than least between sorted moments within from
// and til.
func Stills(moments []int64, least time.Duration, from, til int64) (stills []Still) {
	for i := 1; i < len(moments); i++ {
		a, b := moments[i-1], moments[i]
		if a >= from && b <= til && b-a > int64(least) {
			stills = append(stills, Still{a, b})
		}
	}
	return stills
}

// Honest lists the nodes that called themselves ready while nothing moved: a
// node may take grace to notice.
func Honest(stills []Still, looks []Look, grace time.Duration) (wrong []string) {
	for _, s := range stills {
		told := make(map[string]bool)
		for _, l := range looks {
			if l.At < s.From+int64(grace) || l.At > s.Til-int64(time.Second) || !l.Ready || told[l.Node] {
				continue
			}
			told[l.Node] = true
			wrong = append(wrong, fmt.Sprintf("%s called itself ready %.1f s into %.1f s in which no job began",
				l.Node, float64(l.At-s.From)/1e9, float64(s.Til-s.From)/1e9))
		}
	}
	return wrong
}
