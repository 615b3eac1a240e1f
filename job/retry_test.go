package job

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPolicy_Decide(t *testing.T) {
	const s = time.Second
	after := func(d time.Duration) *time.Duration { return &d }
	fault := func(message, kind string) *Fault { return &Fault{Message: message, Type: kind} }
	for _, c := range []struct {
		name    string
		attempt Attempt
		outcome Outcome
		want    Verdict
	}{
		{"success", Attempt{Number: 1}, Outcome{Status: Success}, Verdict{Next: NextDone}},
		{"success at last", Attempt{Number: 99}, Outcome{Status: Success, Final: true}, Verdict{Next: NextDone}},
		// RRQ's backoff: 5 s, doubling, at most an hour, no jitter.
		{"first error", Attempt{Number: 1}, Outcome{Status: Error, Fault: fault("boom", "")}, Verdict{NextRetry, 5 * s, "boom", false}},
		{"second", Attempt{Number: 2}, Outcome{Status: Error}, Verdict{NextRetry, 10 * s, "error", false}},
		{"fourth", Attempt{Number: 4}, Outcome{Status: Error}, Verdict{NextRetry, 40 * s, "error", false}},
		{"the last", Attempt{Number: 5}, Outcome{Status: Error}, Verdict{Next: NextDead, Reason: "error"}},
		{"tenth of twenty", Attempt{Number: 10, MaxAttempts: 20}, Outcome{Status: Error}, Verdict{NextRetry, 2560 * s, "error", false}},
		{"eleventh of twenty", Attempt{Number: 11, MaxAttempts: 20}, Outcome{Status: Error}, Verdict{NextRetry, 3600 * s, "error", false}},
		{"very late", Attempt{Number: math.MaxUint32 - 1, MaxAttempts: math.MaxUint32}, Outcome{Status: Error}, Verdict{NextRetry, 3600 * s, "error", false}},
		{"its own last", Attempt{Number: 1, MaxAttempts: 1}, Outcome{Status: Error}, Verdict{Next: NextDead, Reason: "error"}},
		{"its own interval", Attempt{Number: 3, RetryInterval: 7 * s}, Outcome{Status: Error}, Verdict{NextRetry, 7 * s, "error", false}},
		// A handler that asks to be run again uses up an attempt, like an error.
		{"retry", Attempt{Number: 1}, Outcome{Status: Retry, Fault: fault("busy", "")}, Verdict{NextRetry, 5 * s, "busy", false}},
		{"retry at its time", Attempt{Number: 1, RetryInterval: 7 * s}, Outcome{Status: Retry, RetryAfter: after(2 * s)}, Verdict{NextRetry, 2 * s, "error", false}},
		{"retry too far away", Attempt{Number: 1}, Outcome{Status: Retry, RetryAfter: after(99 * time.Hour)}, Verdict{NextRetry, 3600 * s, "error", false}},
		{"retry in the past", Attempt{Number: 1}, Outcome{Status: Retry, RetryAfter: after(-s)}, Verdict{NextRetry, 0, "error", false}},
		{"the last retry", Attempt{Number: 5}, Outcome{Status: Retry, RetryAfter: after(s)}, Verdict{Next: NextDead, Reason: "error"}},
		// Final outcomes.
		{"timeout", Attempt{Number: 1}, Outcome{Status: TimedOut}, Verdict{Next: NextDead, Reason: "timeout"}},
		{"cancelled", Attempt{Number: 1}, Outcome{Status: RunCancelled}, Verdict{Next: NextDead, Reason: "cancelled"}},
		{"no handler", Attempt{Number: 1}, Outcome{Status: Error, Fault: fault("none", HandlerNotFound)}, Verdict{Next: NextDead, Reason: "none"}},
		{"no handler, but a retry", Attempt{Number: 1}, Outcome{Status: Error, Fault: fault("none", "other")}, Verdict{NextRetry, 5 * s, "none", false}},
		{"invalid", Attempt{Number: 1}, Outcome{Status: Error, Fault: fault("bad", FaultInvalid)}, Verdict{Next: NextDead, Reason: "bad"}},
		{"invalid to its handler", Attempt{Number: 1}, Outcome{Status: Error, Started: true, Fault: fault("bad", FaultInvalid)}, Verdict{Next: NextRetry, Delay: 5 * time.Second, Reason: "bad"}},
		{"retry without a handler", Attempt{Number: 1}, Outcome{Status: Retry, Started: true, Fault: fault("later", HandlerNotFound)}, Verdict{Next: NextRetry, Delay: 5 * time.Second, Reason: "later"}},
		{"final", Attempt{Number: 1}, Outcome{Status: Error, Final: true}, Verdict{Next: NextDead, Reason: "error"}},
		// Dispatches that never ran, or were stopped by the system, give the
		// attempt back.
		{"declined", Attempt{Number: 5}, Outcome{Status: Declined}, Verdict{Next: NextGiveBack, Reason: "declined"}},
		{"declined for a while", Attempt{Number: 5}, Outcome{Status: Declined, RetryAfter: after(s)}, Verdict{Next: NextGiveBack, Delay: s, Reason: "declined"}},
		{"interrupted", Attempt{Number: 5, Losses: 9}, Outcome{Status: Interrupted}, Verdict{Next: NextGiveBack, Reason: "interrupted"}},
		{"lost", Attempt{Number: 5, Losses: 8}, Outcome{Status: Lost}, Verdict{Next: NextGiveBack, Reason: "lost", Loss: true}},
		{"lost too often", Attempt{Number: 1, Losses: 9}, Outcome{Status: Lost}, Verdict{Next: NextDead, Reason: "lost_too_often"}},
		{"lost too often, and how", Attempt{Number: 1, Losses: 9}, Outcome{Status: Lost, Fault: fault("runner go/1 ended: exit status 3", FaultLost)}, Verdict{Next: NextDead, Reason: "lost_too_often: runner go/1 ended: exit status 3"}},
	} {
		if diff := cmp.Diff(c.want, DefaultPolicy.Decide(c.attempt, c.outcome)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestPolicy_WithoutAttempts(t *testing.T) {
	if v := (Policy{}).Decide(Attempt{Number: 1}, Outcome{Status: Error}); v.Next != NextDead {
		t.Errorf("a policy of no attempts decides %+v", v)
	}
}
