package server

import (
	"fmt"
	"math"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
)

// retryChanges returns the changes of a queue's retry rules. It checks only what a
// [job.RetryChange] cannot hold; the ledger checks the rules that result.
func retryChanges(rules []api.RetryRuleChange) ([]job.RetryChange, error) {
	var changes []job.RetryChange
	for i := range rules {
		r := &rules[i]
		c := job.RetryChange{Function: r.Function, Remove: r.Remove, RetryOn: api.NamesOf(r.RetryOn), DiscardOn: api.NamesOf(r.DiscardOn)}
		for _, number := range []struct {
			name            string
			setting         api.Setting[int64]
			lowest, highest int64
			set             func(value int64)
			reset           int64
		}{
			{"max_attempts", r.MaxAttempts, 1, math.MaxUint32, func(value int64) { c.MaxAttempts = new(uint32(value)) }, 0},
			{"backoff_ms", r.BackoffMS, 1, job.MaxDuration.Milliseconds(), func(value int64) { c.Backoff = milliseconds(value) }, 0},
			{"max_backoff_ms", r.MaxBackoffMS, 1, job.MaxDuration.Milliseconds(), func(value int64) { c.MaxBackoff = milliseconds(value) }, 0},
			{"jitter", r.Jitter, 0, job.MaxJitter, func(value int64) { c.Jitter = new(int16(value)) }, -1},
		} {
			switch value, given := number.setting.Get(); {
			case !given:
			case value == nil:
				number.set(number.reset)
			case *value < number.lowest || *value > number.highest:
				return nil, &job.InvalidError{Reason: fmt.Sprintf("retry: %s is %d; must be %d to %d, or null to reset it", number.name, *value, number.lowest, number.highest)}
			default:
				number.set(*value)
			}
		}
		changes = append(changes, c)
	}
	return changes, nil
}

func milliseconds(n int64) *time.Duration { return new(time.Duration(n) * time.Millisecond) }
