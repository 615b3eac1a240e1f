package metrics

import (
	"cmp"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/web"
)

// maxLimitLabels is how many limits have their own series: those with the most running and waiting
// jobs. Of the rest, the running and waiting jobs are added up under [web.Others].
const maxLimitLabels = 200

// collectLimits emits how much of each limit is used.
func collectLimits(view func(func(*ledger.Ledger)), emit web.Emit) {
	var limits []ledger.LimitView
	now := time.Now()
	view(func(l *ledger.Ledger) { limits = l.Limits(now) })
	emit("yard_limits", float64(len(limits)))
	slices.SortStableFunc(limits, func(a, b ledger.LimitView) int { return cmp.Compare(b.Running+b.Waiting, a.Running+a.Waiting) })
	labelled := limits[:min(len(limits), maxLimitLabels)]
	for i := range labelled {
		m, full := &labelled[i], 0.0
		if !m.FullSince.IsZero() {
			full = max(0, now.Sub(m.FullSince).Seconds())
		}
		emit("yard_limit_jobs", float64(m.Running), m.Name, "running")
		emit("yard_limit_jobs", float64(m.Waiting), m.Name, "waiting")
		if m.Total >= 0 {
			emit("yard_limit_slots", float64(m.Total), m.Name)
			emit("yard_limit_full_seconds", full, m.Name)
		}
		if m.Limit.Circuit.OpenAfter > 0 {
			emit("yard_limit_circuit_open", boolValue(!m.Circuit.OpenedAt.IsZero()), m.Name)
		}
		emit("yard_limit_paused", boolValue(m.Paused), m.Name)
	}
	if len(limits) == len(labelled) {
		return
	}
	running, waiting := 0, 0
	for i := range limits[len(labelled):] {
		m := &limits[len(labelled)+i]
		running, waiting = running+m.Running, waiting+m.Waiting
	}
	emit("yard_limit_jobs", float64(running), web.Others, "running")
	emit("yard_limit_jobs", float64(waiting), web.Others, "waiting")
}
