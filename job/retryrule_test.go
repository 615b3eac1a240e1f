package job

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestPolicy_DecideByRule(t *testing.T) {
	exact := DefaultPolicy
	exact.Jitter = 0
	const s = time.Second
	fail := func(kind, code string) Outcome {
		return Outcome{Status: Error, Started: true, Fault: &Fault{Message: "boom", Type: kind, Code: code}}
	}
	timeout := Outcome{Status: TimedOut, Started: true}
	for _, c := range []struct {
		name    string
		rule    RetryRule
		attempt Attempt
		outcome Outcome
		want    Verdict
	}{
		{"attempts", RetryRule{Function: "send", MaxAttempts: 2}, Attempt{Number: 1}, fail("", ""), Verdict{NextRetry, 5 * s, "boom", false}},
		{"attempts used", RetryRule{Function: "send", MaxAttempts: 2}, Attempt{Number: 2}, fail("", ""), Verdict{Next: NextDead, Reason: "boom"}},
		{"attempts of the job", RetryRule{Function: "send", MaxAttempts: 2}, Attempt{Number: 2, MaxAttempts: 3}, fail("", ""), Verdict{NextRetry, 10 * s, "boom", false}},
		{"backoff", RetryRule{Backoff: 7 * s}, Attempt{Number: 2}, fail("", ""), Verdict{NextRetry, 14 * s, "boom", false}},
		{"longest backoff", RetryRule{Backoff: 7 * s, MaxBackoff: 20 * s}, Attempt{Number: 3}, fail("", ""), Verdict{NextRetry, 20 * s, "boom", false}},
		{"longest backoff below the cluster's first", RetryRule{MaxBackoff: 2 * s}, Attempt{Number: 1}, fail("", ""), Verdict{NextRetry, 2 * s, "boom", false}},
		{"backoff above the cluster's longest", RetryRule{Backoff: 2 * time.Hour}, Attempt{Number: 3}, fail("", ""), Verdict{NextRetry, 2 * time.Hour, "boom", false}},
		{"interval of the job", RetryRule{Backoff: 7 * s}, Attempt{Number: 2, RetryInterval: s}, fail("", ""), Verdict{NextRetry, s, "boom", false}},
		{"delay of the worker", RetryRule{Backoff: 7 * s}, Attempt{Number: 2}, Outcome{Status: Retry, RetryAfter: new(3 * s)}, Verdict{NextRetry, 3 * s, "error", false}},
		{"longest delay of the worker", RetryRule{MaxBackoff: 7 * s}, Attempt{Number: 2}, Outcome{Status: Retry, RetryAfter: new(time.Minute)}, Verdict{NextRetry, 7 * s, "error", false}},

		{"discarded type", RetryRule{DiscardOn: []string{"invalid_card"}}, Attempt{Number: 1}, fail("invalid_card", ""),
			Verdict{Next: NextDead, Reason: "boom (not retried: invalid_card is in discard_on of the retry rule for all functions)"}},
		{"discarded code", RetryRule{Function: "send", DiscardOn: []string{"E7"}}, Attempt{Number: 1, MaxAttempts: 9}, fail("smtp", "E7"),
			Verdict{Next: NextDead, Reason: "boom (not retried: E7 is in discard_on of the retry rule for function send)"}},
		{"discarded though the handler asks for a retry", RetryRule{DiscardOn: []string{"E7"}}, Attempt{Number: 1}, Outcome{Status: Retry, Fault: &Fault{Code: "E7"}},
			Verdict{Next: NextDead, Reason: "error (not retried: E7 is in discard_on of the retry rule for all functions)"}},
		{"discarded timeout", RetryRule{DiscardOn: []string{"timeout"}}, Attempt{Number: 1, RetryOnTimeout: new(true)}, timeout,
			Verdict{Next: NextDead, Reason: "timeout (not retried: timeout is in discard_on of the retry rule for all functions)"}},
		{"another type", RetryRule{DiscardOn: []string{"invalid_card"}}, Attempt{Number: 1}, fail("smtp", "E7"), Verdict{NextRetry, 5 * s, "boom", false}},

		{"retried type", RetryRule{RetryOn: []string{"http_503"}}, Attempt{Number: 1}, fail("http_503", ""), Verdict{NextRetry, 5 * s, "boom", false}},
		{"retried type at last", RetryRule{RetryOn: []string{"http_503"}}, Attempt{Number: 5}, fail("http_503", ""), Verdict{Next: NextDead, Reason: "boom"}},
		{"type that is not retried", RetryRule{RetryOn: []string{"http_503"}}, Attempt{Number: 1}, fail("http_404", ""),
			Verdict{Next: NextDead, Reason: "boom (not retried: http_404 is not in retry_on of the retry rule for all functions)"}},
		{"type that is not retried, at last", RetryRule{RetryOn: []string{"http_503"}}, Attempt{Number: 5}, fail("http_404", ""), Verdict{Next: NextDead, Reason: "boom"}},
		{"no type", RetryRule{RetryOn: []string{"http_503"}}, Attempt{Number: 1}, fail("", ""),
			Verdict{Next: NextDead, Reason: "boom (not retried: an error without a type is not in retry_on of the retry rule for all functions)"}},
		{"retry that the handler asks for", RetryRule{RetryOn: []string{"http_503"}}, Attempt{Number: 1}, Outcome{Status: Retry}, Verdict{NextRetry, 5 * s, "error", false}},
		{"delay that the handler asks for", RetryRule{RetryOn: []string{"http_503"}}, Attempt{Number: 1}, Outcome{Status: Error, RetryAfter: new(s)}, Verdict{NextRetry, s, "error", false}},
		{"final", RetryRule{RetryOn: []string{"http_503"}}, Attempt{Number: 1}, Outcome{Status: Error, Final: true, Fault: &Fault{Type: "http_503"}}, Verdict{Next: NextDead, Reason: "error"}},
		{"retried timeout", RetryRule{RetryOn: []string{"timeout"}}, Attempt{Number: 1}, timeout, Verdict{NextRetry, 5 * s, "timeout", false}},
		{"timeout that the job does not retry", RetryRule{RetryOn: []string{"timeout"}}, Attempt{Number: 1, RetryOnTimeout: new(false)}, timeout, Verdict{Next: NextDead, Reason: "timeout"}},
		{"timeout that the queue retries", RetryRule{RetryOn: []string{"http_503"}}, Attempt{Number: 1, RetryOnTimeout: new(true)}, timeout, Verdict{NextRetry, 5 * s, "timeout", false}},
		{"timeout that is not retried", RetryRule{RetryOn: []string{"http_503"}}, Attempt{Number: 1}, timeout, Verdict{Next: NextDead, Reason: "timeout"}},

		{"snoozed", RetryRule{MaxBackoff: s, DiscardOn: []string{"E7"}, RetryOn: []string{"http_503"}}, Attempt{Number: 5},
			Outcome{Status: Declined, Started: true, RetryAfter: new(time.Hour), Fault: &Fault{Message: "not yet", Code: "E7"}}, Verdict{NextGiveBack, time.Hour, "not yet", false}},
		{"lost", RetryRule{DiscardOn: []string{"lost"}}, Attempt{Number: 5}, Outcome{Status: Lost, Fault: &Fault{Type: FaultLost}}, Verdict{Next: NextGiveBack, Reason: "lost", Loss: true}},
	} {
		if err := c.rule.validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, exact.Decide(c.attempt, &c.rule, c.outcome)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// A long reason is cut so that it still has the note.
func TestPolicy_DecideCutsReason(t *testing.T) {
	rule := &RetryRule{DiscardOn: []string{"E7"}}
	v := DefaultPolicy.Decide(Attempt{Number: 1}, rule, Outcome{Status: Error, Fault: &Fault{Message: strings.Repeat("x", MaxInlineFault), Code: "E7"}})
	if len(v.Reason) > MaxInlineFault || !strings.HasSuffix(v.Reason, "E7 is in discard_on of the retry rule for all functions)") {
		t.Errorf("a reason of %d bytes: …%s", len(v.Reason), v.Reason[max(0, len(v.Reason)-100):])
	}
}

// drawRule draws a valid rule.
func drawRule(t *rapid.T) *RetryRule {
	r := &RetryRule{Function: rapid.SampledFrom([]string{"", "send"}).Draw(t, "function")}
	if r.Function != "" {
		r.MaxAttempts = rapid.Uint32Range(0, 6).Draw(t, "attempts of the rule")
	}
	r.Backoff = time.Duration(rapid.Int64Range(0, 20).Draw(t, "backoff")) * time.Second
	if rapid.Bool().Draw(t, "bounded") {
		r.MaxBackoff = r.Backoff + time.Duration(rapid.Int64Range(1, 20).Draw(t, "more"))*time.Second
	}
	if rapid.Bool().Draw(t, "jitters") {
		r.Jitter = new(rapid.Uint8Range(0, MaxJitter).Draw(t, "jitter"))
	}
	for _, name := range []string{"a", "b", FaultTimeout} {
		switch rapid.IntRange(0, 2).Draw(t, name) {
		case 1:
			r.RetryOn = append(r.RetryOn, name)
		case 2:
			r.DiscardOn = append(r.DiscardOn, name)
		}
	}
	return r
}

// Whatever the rule is, no job has more attempts than it may have, an error in discard_on is
// never retried, nor one that retry_on leaves out, delays are within their bounds, and a snooze
// does not count.
func TestPolicy_RuleBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRule(t)
		if err := r.validate(); err != nil {
			t.Fatal(err)
		}
		own := rapid.Uint32Range(0, 6).Draw(t, "attempts of the job")
		most := DefaultPolicy.MaxAttempts
		if r.MaxAttempts > 0 {
			most = r.MaxAttempts
		}
		if own > 0 {
			most = own
		}
		a := Attempt{Number: 1, MaxAttempts: own}
		copy(a.Job[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		for runs := 0; ; runs++ {
			o := Outcome{Status: rapid.SampledFrom([]Status{Error, Retry, TimedOut, Declined}).Draw(t, "status"), Started: true}
			o.Fault = &Fault{Type: rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "type")}
			if o.Status == Declined && runs < 20 {
				o.RetryAfter = new(time.Hour)
				if v := DefaultPolicy.Decide(a, r, o); v.Next != NextGiveBack || v.Delay != time.Hour {
					t.Fatalf("a snooze became %+v", v)
				}
				continue
			}
			v := DefaultPolicy.Decide(a, r, o)
			if v.Next != NextRetry {
				return
			}
			a.Number++
			if a.Number > most {
				t.Fatalf("attempt %d of %d", a.Number, most)
			}
			named := func(names []string) bool {
				return slices.Contains(names, o.Fault.Type) || o.Status == TimedOut && slices.Contains(names, FaultTimeout)
			}
			if named(r.DiscardOn) || o.Status != Retry && len(r.RetryOn) > 0 && !named(r.RetryOn) {
				t.Fatalf("%s %q is retried by %+v", o.Status, o.Fault.Type, r)
			}
			longest := max(DefaultPolicy.MaxDelay, r.Backoff)
			if r.MaxBackoff > 0 {
				longest = r.MaxBackoff
			}
			if v.Delay > longest*2 || v.Delay < min(longest, max(r.Backoff, time.Second)) {
				t.Fatalf("delay %v by %+v", v.Delay, r)
			}
		}
	})
}

func TestQueueConfig_ChangeRetries(t *testing.T) {
	first := QueueConfig{}.Changed(QueueChange{Retries: []RetryChange{
		{Function: "send", MaxAttempts: new(uint32(3)), DiscardOn: &Names{[]string{"b", "a", "b"}}},
		{Backoff: new(time.Second), Jitter: new(int16(0))},
	}})
	want := []RetryRule{
		{Backoff: time.Second, Jitter: new(uint8(0))},
		{Function: "send", MaxAttempts: 3, DiscardOn: []string{"a", "b"}},
	}
	if diff := cmp.Diff(want, first.Retries); diff != "" {
		t.Fatalf("rules (-want +got):\n%s", diff)
	}
	// Two changes of different settings do not overwrite each other.
	second := first.Changed(QueueChange{Retries: []RetryChange{{Function: "send", Backoff: new(time.Minute)}}}).
		Changed(QueueChange{Retries: []RetryChange{{Function: "send", MaxAttempts: new(uint32(0))}, {Jitter: new(int16(-1))}}})
	want = []RetryRule{{Backoff: time.Second}, {Function: "send", Backoff: time.Minute, DiscardOn: []string{"a", "b"}}}
	if diff := cmp.Diff(want, second.Retries); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	if first.Retries[0].Jitter == nil || first.Retries[1].MaxAttempts != 3 {
		t.Errorf("the change has changed the earlier configuration: %+v", first.Retries)
	}
	third := second.Changed(QueueChange{Retries: []RetryChange{{Backoff: new(time.Duration(0))}, {Function: "send", Remove: true}}})
	if third.Retries != nil {
		t.Errorf("rules are left: %+v", third.Retries)
	}
	if dropped := second.Changed(QueueChange{DropRetries: true}); dropped.Retries != nil {
		t.Errorf("rules are left: %+v", dropped.Retries)
	}
	for function, want := range map[string]time.Duration{"send": time.Minute, "other": time.Second, "": time.Second} {
		if r := second.Rule(function); r == nil || r.Backoff != want {
			t.Errorf("rule for %q is %+v, want the backoff %v", function, r, want)
		}
	}
	if r := (&QueueConfig{Retries: want[1:]}).Rule("other"); r != nil {
		t.Errorf("the rule for another function is %+v", r)
	}
}

func TestQueueConfig_InvalidRetries(t *testing.T) {
	for want, r := range map[string]RetryRule{
		"retry rule for all functions: it takes no max_attempts":   {MaxAttempts: 1},
		"retry rule for function send: backoff is -1s":             {Function: "send", Backoff: -time.Second},
		"max_backoff is 1s; must be at least backoff, which is 2s": {Backoff: 2 * time.Second, MaxBackoff: time.Second},
		"jitter is 101":                                      {Jitter: new(uint8(101))},
		`"a b" is not a type or code`:                        {RetryOn: []string{"a b"}},
		`"" is not a type or code`:                           {RetryOn: []string{""}},
		"a is both in retry_on and in discard_on":            {RetryOn: []string{"a"}, DiscardOn: []string{"a"}},
		"retry_on and discard_on name 33 errors; at most 32": {RetryOn: strings.Split(strings.Repeat("a,", 32)+"a", ",")},
		"retry rule: function has 257 bytes; at most 256":    {Function: strings.Repeat("f", 257), Backoff: time.Second},
		"max_backoff is 1ns; must be 1ms to 3650d":           {MaxBackoff: 1},
	} {
		c := QueueConfig{Retries: []RetryRule{r}}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	c := QueueConfig{Retries: make([]RetryRule, MaxRetryRules+1)}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "101 retry rules; at most 100") {
		t.Error(err)
	}
}

func TestQueueChange_RetriesAsText(t *testing.T) {
	c := QueueChange{DropRetries: true, Retries: []RetryChange{
		{Backoff: new(10 * time.Second), MaxBackoff: new(time.Hour), Jitter: new(int16(20))},
		{Function: "send", Remove: true, MaxAttempts: new(uint32(5)), RetryOn: &Names{[]string{"http_503", "timeout"}}, DiscardOn: &Names{}},
	}}
	const want = "retry=none retry.backoff=10s retry.max_backoff=1h retry.jitter=20" +
		" retry.send.remove=true retry.send.max_attempts=5 retry.send.retry_on=http_503,timeout retry.send.discard_on=none"
	if long := c.Text(true); long != strings.Replace(want, "=1h", "=1h0m0s", 1) {
		t.Errorf("with long durations: %s", long)
	}
	if c.String() != want || c.IsEmpty() || (QueueChange{Retries: c.Retries[:1]}).IsEmpty() {
		t.Errorf("%s\nwant %s", c, want)
	}
}
