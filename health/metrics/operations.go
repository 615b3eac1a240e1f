package metrics

import (
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/web"
)

// collectOperations emits how many operations there are and what they have done, and how far those
// are that have not ended, of which there are at most [ledger.MaxOperations].
func collectOperations(view func(func(*ledger.Ledger)), emit web.Emit) {
	var all []*ledger.Operation
	view(func(l *ledger.Ledger) { all = l.Operations() })
	now := time.Now()
	states := map[ledger.OperationState]int{}
	jobs := map[ledger.OperationAction]ledger.OperationCounts{}
	for _, op := range all {
		states[op.State]++
		counts := jobs[op.Action]
		counts.Add(op.OperationCounts)
		jobs[op.Action] = counts
		if !op.State.Ended() {
			collectOperation(op, now, emit)
		}
	}
	for state := ledger.OperationRunning; state <= ledger.OperationCancelled; state++ {
		emit("yard_operations", float64(states[state]), state.String())
	}
	for action := ledger.OperationRetry; action <= ledger.OperationRequeue; action++ {
		counts := jobs[action]
		emit("yard_operation_jobs", float64(counts.Changed), action.String(), "changed")
		emit("yard_operation_jobs", float64(counts.Skipped.Total()), action.String(), "skipped")
		emit("yard_operation_jobs", float64(counts.Failed), action.String(), "failed")
	}
}

// collectOperation emits how far an operation is that has not ended.
func collectOperation(op *ledger.Operation, now time.Time, emit web.Emit) {
	number := strconv.FormatUint(op.Number, 10)
	emit("yard_operation_matched_jobs", float64(op.Matched()), number)
	if op.Expected > 0 {
		emit("yard_operation_expected_jobs", float64(op.Expected), number)
	}
	if op.Rate > 0 {
		emit("yard_operation_rate_limit", float64(op.Rate), number)
	}
	stalled := 0.0
	if op.State == ledger.OperationRunning {
		stalled = max(0, now.Sub(op.Updated).Seconds())
	}
	emit("yard_operation_stalled_seconds", stalled, number)
}
