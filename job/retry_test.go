package job

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestPolicy_Decide(t *testing.T) {
	exact := DefaultPolicy
	exact.Jitter = 0
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
		// RRQ's backoff: 5 s, doubling, at most an hour.
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
		{"timeout that is retried", Attempt{Number: 1, RetryOnTimeout: new(true)}, Outcome{Status: TimedOut}, Verdict{NextRetry, 5 * s, "timeout", false}},
		{"timeout at its interval", Attempt{Number: 2, RetryOnTimeout: new(true), RetryInterval: 7 * s}, Outcome{Status: TimedOut, Started: true, Fault: fault("too long", FaultTimeout)}, Verdict{NextRetry, 7 * s, "too long", false}},
		{"the last timeout", Attempt{Number: 5, RetryOnTimeout: new(true)}, Outcome{Status: TimedOut}, Verdict{Next: NextDead, Reason: "timeout"}},
		{"cancelled", Attempt{Number: 1, RetryOnTimeout: new(true)}, Outcome{Status: RunCancelled}, Verdict{Next: NextDead, Reason: "cancelled"}},
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
		if diff := cmp.Diff(c.want, exact.Decide(c.attempt, nil, c.outcome)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestPolicy_WithoutAttempts(t *testing.T) {
	if v := (Policy{}).Decide(Attempt{Number: 1}, nil, Outcome{Status: Error}); v.Next != NextDead {
		t.Errorf("a policy of no attempts decides %+v", v)
	}
}

// retryDelay returns the delay after a failed attempt.
func retryDelay(p Policy, a Attempt, o Outcome) time.Duration {
	o.Status = Error
	return p.Decide(a, nil, o).Delay
}

// A backoff is lengthened by at most the policy's jitter, and never shortened. The same
// attempt always has the same delay.
func TestPolicy_JitterBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{
			BaseDelay: time.Duration(rapid.Int64Range(1, int64(time.Hour)).Draw(t, "base")),
			MaxDelay:  time.Duration(rapid.Int64Range(int64(time.Hour), int64(30*24*time.Hour)).Draw(t, "max")),
			Jitter:    rapid.Uint8Range(0, 100).Draw(t, "jitter"),
		}
		a := Attempt{Number: rapid.Uint32Range(1, 1e6).Draw(t, "number"), MaxAttempts: math.MaxUint32}
		copy(a.Job[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		exact := p
		exact.Jitter = 0
		shortest, delay := retryDelay(exact, a, Outcome{}), retryDelay(p, a, Outcome{})
		longest := shortest + shortest/100*time.Duration(p.Jitter)
		if delay < shortest || delay > longest {
			t.Errorf("delay %v, want %v to %v", delay, shortest, longest)
		}
		if again := retryDelay(p, a, Outcome{}); again != delay {
			t.Errorf("delay %v, then %v", delay, again)
		}
	})
}

// Jobs that failed together are spread evenly over the jitter, also if their ids were
// made in sequence, and each differently after each attempt.
func TestPolicy_JitterSpreads(t *testing.T) {
	const jobs, slices = 20000, 20
	for attempt := uint32(1); attempt <= 4; attempt++ {
		shortest := 5 * time.Second << (attempt - 1)
		width := shortest / 2 / slices
		var counts [slices]int
		repeated := 0
		for i := range uint32(jobs) {
			a := Attempt{Number: attempt}
			binary.BigEndian.PutUint32(a.Job[:], 0x0193_5a00+i) // as in a UUIDv7
			extra := retryDelay(DefaultPolicy, a, Outcome{}) - shortest
			counts[min(int(extra/width), slices-1)]++
			a.Number++
			if later := retryDelay(DefaultPolicy, a, Outcome{}) - 2*shortest; (later/2 - extra).Abs() < width/100 {
				repeated++
			}
		}
		for slice, n := range counts {
			if n < jobs/slices*8/10 || n > jobs/slices*12/10 {
				t.Errorf("attempt %d: %d of %d jobs in slice %d of %d", attempt, n, jobs, slice, slices)
			}
		}
		if attempt < 4 && repeated > jobs/100 {
			t.Errorf("attempt %d: %d of %d jobs are lengthened alike after the next attempt", attempt, repeated, jobs)
		}
	}
}

// Delays that a worker or a producer asked for have no jitter: clients rely on them.
func TestPolicy_JitterLeavesRequestedDelays(t *testing.T) {
	asked := 3 * time.Second
	if d := retryDelay(DefaultPolicy, Attempt{Number: 1}, Outcome{RetryAfter: &asked}); d != asked {
		t.Errorf("retry_after of %v became %v", asked, d)
	}
	if d := retryDelay(DefaultPolicy, Attempt{Number: 1, RetryInterval: asked}, Outcome{}); d != asked {
		t.Errorf("retry_interval of %v became %v", asked, d)
	}
}
