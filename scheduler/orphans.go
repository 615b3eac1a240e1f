package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

const (
	orphanInterval = time.Second // between two runs of sweepOrphans
	maxOrphans     = 1000        // jobs cancelled per run
)

// sweepOrphans handles waiting jobs that need a runner which no live member has. If
// no member is configured for the runner, they are cancelled; else they wait, and
// the status names the runner. No job is cancelled before every member has reported
// its runners.
func (t *tenure) sweepOrphans(now time.Time) {
	if now.Sub(t.orphansCheckedAt) < orphanInterval {
		return
	}
	t.orphansCheckedAt = now
	owners, available, unknown := t.runnerOwners()
	away := map[string]string{}
	left := maxOrphans
	t.ledger().View(func(l *ledger.Ledger) {
		t.scanRunnerQueues(l, func(runner, queue, class string) {
			switch {
			case available[runner]:
			case len(owners[runner]) == 0 && len(unknown) == 0:
				left -= t.cancelOrphans(l, runner, queue, class, left)
			case anyWaiting(l, queue, class):
				away[runner] = awayReason(runner, owners[runner], unknown)
			}
		})
	})
	t.awayRunners = t.awayRunners[:0]
	for _, runner := range slices.Sorted(maps.Keys(away)) {
		t.awayRunners = append(t.awayRunners, away[runner])
	}
}

// runnerOwners returns the members that are configured for each runner, the runners
// that a member which is not silent has, and the members that have not reported
// their runners.
func (t *tenure) runnerOwners() (owners map[string][]string, available map[string]bool, unknown []string) {
	owners, available = map[string][]string{}, map[string]bool{}
	for _, name := range t.members {
		n := t.nodes[name]
		if n == nil || n.runners == nil {
			unknown = append(unknown, name)
			continue
		}
		for r := range n.runners {
			owners[r] = append(owners[r], name)
			available[r] = available[r] || !n.silent
		}
	}
	return owners, available, unknown
}

// scanRunnerQueues calls fn for every waitlist whose jobs only one runner may run.
func (t *tenure) scanRunnerQueues(l *ledger.Ledger, fn func(runner, queue, class string)) {
	l.Classes(func(class string) bool {
		if runner, _ := job.SplitFunction(class); runner != "" {
			l.QueuesWaiting(class, func(queue string) bool {
				fn(runner, queue, class)
				return true
			})
		}
		return true
	})
	for queue, runner := range t.cfg.Routes {
		fn(runner, queue, ledger.ClassPlain)
		fn(runner, queue, ledger.ClassBare)
	}
}

// cancelOrphans cancels the first jobs of a waitlist, at most limit, and returns how
// many it has cancelled.
func (t *tenure) cancelOrphans(l *ledger.Ledger, runner, queue, class string, limit int) (ended int) {
	l.WaitingJobs(queue, class, func(w ledger.WaitingJob) bool {
		if ended == limit {
			return false
		}
		ended++
		t.submitCommand(&ledger.CancelJob{
			Job: w.ID, Reason: "No runner configured for '" + runner + "'.", Type: job.HandlerNotFound,
		}, nil)
		return true
	})
	return ended
}

// anyWaiting reports whether the ledger's waitlist of a queue and class has a job.
func anyWaiting(l *ledger.Ledger, queue, class string) (found bool) {
	l.WaitingJobs(queue, class, func(ledger.WaitingJob) bool {
		found = true
		return false
	})
	return found
}

// awayReason returns the readiness reason for jobs that wait for a runner, which the
// members in owners are configured for and those in unknown might be.
func awayReason(runner string, owners, unknown []string) string {
	if len(owners) == 0 {
		return fmt.Sprintf("jobs wait for runner %s, which no member that was heard has; not heard yet: %s", runner, strings.Join(unknown, ", "))
	}
	return fmt.Sprintf("jobs wait for runner %s, which only members that are down have: %s", runner, strings.Join(owners, ", "))
}
