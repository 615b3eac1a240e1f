package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"yardmaster/job"
	"yardmaster/ledger"
)

const (
	orphansEvery = time.Second // how often sweepOrphans looks
	maxOrphans   = 1000        // ended at once
)

// sweepOrphans looks at waiting jobs that ask for a runner no living member
// has. If no member is configured for it they are ended; else they wait, and
// look tells for whom. Before every member has said what it has, nobody can
// tell.
func (m *mind) sweepOrphans(now time.Time) {
	if now.Sub(m.orphansAt) < orphansEvery {
		return
	}
	m.orphansAt = now
	having, living, unheard := m.whoHas()
	away := map[string]string{}
	left := maxOrphans
	m.ledger().View(func(l *ledger.Ledger) {
		m.bound(l, func(runner, queue, class string) {
			switch {
			case living[runner]:
			case len(having[runner]) == 0 && len(unheard) == 0:
				left -= m.endOrphans(l, runner, queue, class, left)
			case anyWaiting(l, queue, class):
				away[runner] = awayText(runner, having[runner], unheard)
			}
		})
	})
	m.away = m.away[:0]
	for _, runner := range slices.Sorted(maps.Keys(away)) {
		m.away = append(m.away, away[runner])
	}
}

// whoHas gives the members that are configured for each runner, which runners
// a member that takes work has, and the members that have not said what they
// have.
func (m *mind) whoHas() (having map[string][]string, living map[string]bool, unheard []string) {
	having, living = map[string][]string{}, map[string]bool{}
	for _, name := range m.members {
		n := m.nodes[name]
		if n == nil || n.runners == nil {
			unheard = append(unheard, name)
			continue
		}
		for r := range n.runners {
			having[r] = append(having[r], name)
			living[r] = living[r] || !n.silent
		}
	}
	return having, living, unheard
}

// bound calls fn for every line whose jobs only one runner may run.
func (m *mind) bound(l *ledger.Ledger, fn func(runner, queue, class string)) {
	l.Classes(func(class string) bool {
		if runner, _ := job.SplitFunction(class); runner != "" {
			l.BusyLines(class, func(queue string) bool {
				fn(runner, queue, class)
				return true
			})
		}
		return true
	})
	for queue, runner := range m.cfg.Routes {
		fn(runner, queue, ledger.ClassPlain)
		fn(runner, queue, ledger.ClassBare)
	}
}

// endOrphans ends the first jobs of a line, at most most, and gives how many.
func (m *mind) endOrphans(l *ledger.Ledger, runner, queue, class string, most int) (ended int) {
	l.Line(queue, class, func(w ledger.Waiting) bool {
		if ended == most {
			return false
		}
		ended++
		m.queue(&ledger.CancelJob{
			Job: w.ID, Reason: "No runner configured for '" + runner + "'.", Type: job.HandlerNotFound,
		}, nil)
		return true
	})
	return ended
}

func anyWaiting(l *ledger.Ledger, queue, class string) (any bool) {
	l.Line(queue, class, func(ledger.Waiting) bool {
		any = true
		return false
	})
	return any
}

func awayText(runner string, having, unheard []string) string {
	if len(having) == 0 {
		return fmt.Sprintf("jobs wait for runner %s, which no member that was heard has; not heard yet: %s", runner, strings.Join(unheard, ", "))
	}
	return fmt.Sprintf("jobs wait for runner %s, which only members that are down have: %s", runner, strings.Join(having, ", "))
}
