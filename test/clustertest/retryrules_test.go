package clustertest_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// TestRetryRules sets how a queue's jobs are retried, at several members at once, and checks what
// becomes of jobs whose worker fails, also under another authority.
func TestRetryRules(t *testing.T) {
	t.Parallel()
	cl := clustertest.Start(t, 3)
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "cards", 0)
	set := func(m *clustertest.Member, rules ...api.RetryRuleChange) {
		t.Helper()
		change := api.QueueChange{Name: "cards", Retry: api.SetTo(rules)}
		cl.Eventually("the rules are set", func() error { return m.API("queue.set", change, nil) })
	}
	set(a, api.RetryRuleChange{Function: "charge", MaxAttempts: api.SetTo[int64](2), BackoffMS: api.SetTo[int64](20), Jitter: api.SetTo[int64](0)})
	set(b, api.RetryRuleChange{Function: "charge", DiscardOn: api.SetTo([]string{"invalid_card"})}, api.RetryRuleChange{BackoffMS: api.SetTo[int64](3_600_000)})
	want := []api.RetryRule{
		{BackoffMS: 3_600_000},
		{Function: "charge", MaxAttempts: 2, BackoffMS: 20, Jitter: new(uint8(0)), DiscardOn: []string{"invalid_card"}},
	}
	cl.Eventually("a member shows the rules", func() error {
		if diff := cmp.Diff(want, b.Queue(t, "cards").Retry); diff != "" {
			return errors.New(diff)
		}
		return nil
	})

	var snoozes atomic.Int64
	fails := func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		var params map[string]any
		if err := overhop.Unmarshal(q.Payload, &params); err != nil {
			return nil, err
		}
		code, _ := params["code"].(string)
		if code == "snooze" && snoozes.Add(1) <= 3 {
			return nil, &overhop.FailError{Message: "not yet", Snooze: new(time.Millisecond)}
		}
		return nil, &overhop.FailError{Message: "no", Code: code}
	}
	for _, m := range cl.Members {
		m.Worker(t, "cards", 2, fails)
	}
	checkJobs := func(m *clustertest.Member) {
		t.Helper()
		snoozes.Store(0)
		for code, want := range map[string]struct {
			attempts, dispatches uint32
			reason               string
		}{
			"invalid_card": {1, 1, "no (not retried: invalid_card is in discard_on of the retry rule for function charge)"},
			"http_503":     {2, 2, "no"},
			"snooze":       {2, 5, "no"},
		} {
			id := m.Enqueue(t, "cards", `{"function":"charge","params":{"code":"`+code+`"}}`)
			j := m.WaitState(t, id.String(), "failed")
			if j.Attempts != want.attempts || j.MaxAttempts != 2 || j.Dispatches < want.dispatches || j.Reason != want.reason {
				t.Errorf("%s: %d of %d attempts, %d dispatches, %q", code, j.Attempts, j.MaxAttempts, j.Dispatches, j.Reason)
			}
		}
		id := m.Enqueue(t, "cards", `{"function":"refund","params":{"code":"http_503"}}`)
		m.WaitState(t, id.String(), "delayed")
		var explained api.JobExplanation
		if err := m.API("job.explain", api.JobRequest{ID: id.String()}, &explained); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(explained.Verdict, "delay by the retry rule of queue cards for all functions") {
			t.Errorf("explained as %s", explained.Verdict)
		}
	}
	checkJobs(a)

	authority := authorityOf(t, cl)
	authority.Isolate()
	for _, m := range cl.Members {
		if m != authority {
			checkJobs(m)
			break
		}
	}
	cl.Heal()
}
