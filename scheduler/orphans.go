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
	orphanInterval = time.Second // between two runs of orphans.sweep
	maxOrphans     = 1000        // jobs cancelled per run
)

// orphans finds the orphans: waiting jobs that need a runner which no live member has.
// It belongs to the loop's goroutine.
type orphans struct {
	loop        *eventLoop
	capacity    *capacity
	checkedAt   time.Time // when sweep last ran
	awayReasons []string  // for each runner that jobs wait for and no live member has, see awayReason
}

// sweep cancels the orphans of runners that no member is configured for. The others
// wait, and the status names their runner. No job is cancelled before every member has
// reported its runners.
func (o *orphans) sweep(now time.Time) {
	if now.Sub(o.checkedAt) < orphanInterval {
		return
	}
	o.checkedAt = now
	owners, available, unknown := o.capacity.runnerOwners()
	away := map[string]string{}
	remaining := maxOrphans
	o.loop.ledger.View(func(l *ledger.Ledger) {
		o.scanQueues(l, func(runner, queue, class string) {
			switch {
			case available[runner]:
			case len(owners[runner]) == 0 && len(unknown) == 0:
				remaining -= o.cancel(l, runner, queue, class, remaining)
			case anyWaiting(l, queue, class):
				away[runner] = awayReason(runner, owners[runner], unknown)
			}
		})
	})
	o.awayReasons = o.awayReasons[:0]
	for _, runner := range slices.Sorted(maps.Keys(away)) {
		o.awayReasons = append(o.awayReasons, away[runner])
	}
}

// scanQueues calls fn for every waitlist whose jobs only one runner may run.
func (o *orphans) scanQueues(l *ledger.Ledger, fn func(runner, queue, class string)) {
	l.Classes(func(class string) bool {
		if runner, _ := job.SplitFunction(class); runner != "" {
			l.QueuesWaiting(class, func(queue string) bool {
				fn(runner, queue, class)
				return true
			})
		}
		return true
	})
	for queue, runner := range o.loop.cfg.Routes {
		fn(runner, queue, ledger.ClassPlain)
		fn(runner, queue, ledger.ClassBare)
	}
}

// cancel cancels the first jobs of a waitlist, at most limit, and returns how many it
// has cancelled.
func (o *orphans) cancel(l *ledger.Ledger, runner, queue, class string, limit int) (cancelled int) {
	l.WaitingJobs(queue, class, func(w ledger.WaitingJob) bool {
		if cancelled == limit {
			return false
		}
		cancelled++
		o.loop.submit(&ledger.CancelJob{
			Job: w.ID, Reason: "No runner configured for '" + runner + "'.", Type: job.HandlerNotFound,
		}, nil)
		return true
	})
	return cancelled
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
		return fmt.Sprintf("jobs wait for runner %s, which no member with a heartbeat has; no heartbeat yet from: %s", runner, strings.Join(unknown, ", "))
	}
	return fmt.Sprintf("jobs wait for runner %s, which only members that are down have: %s", runner, strings.Join(owners, ", "))
}
