package clustertest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// perKey creates a queue whose jobs may run n at a time for each customer.
func perKey(t *testing.T, m *clustertest.Member, cl *clustertest.Cluster, queue string, n int64, retry ...api.RetryRuleChange) {
	t.Helper()
	m.AddQueue(t, queue, 0)
	cl.Eventually("the limit is set", func() error {
		return m.API("limit.set", api.LimitChange{Name: queue + "-limit", PerKey: api.SetTo(n)}, nil)
	})
	change := api.QueueChange{Name: queue, StartSettings: api.StartSettings{
		Limits: api.SetTo([]string{queue + "-limit"}), Key: api.SetTo("params.customer"),
	}}
	if len(retry) > 0 {
		change.Retry = api.SetTo(retry)
	}
	cl.Eventually("the queue uses the limit", func() error { return m.API("queue.set", change, nil) })
}

// peak counts the runs that are active at the same time.
type peak struct{ active, most atomic.Int64 }

func (p *peak) begin() {
	n := p.active.Add(1)
	for most := p.most.Load(); n > most && !p.most.CompareAndSwap(most, n); most = p.most.Load() {
	}
}

func (p *peak) end() { p.active.Add(-1) }

// TestLimit_RunningJobsSortLast fills a limit with two jobs of a customer, which come last in
// every order, lets another member take over, and offers jobs that come before them: some with
// a higher priority, some accepted earlier. A scheduler that counts the running jobs among the
// first two of the order finds none, and starts two more.
func TestLimit_RunningJobsSortLast(t *testing.T) {
	t.Parallel()
	cl := clustertest.Start(t, 3)
	authority := authorityOf(t, cl)
	var followers []*clustertest.Member
	for _, m := range cl.Members {
		if m != authority {
			followers = append(followers, m)
		}
	}
	m := followers[0]
	perKey(t, m, cl, "calls", 2)
	release := make(chan struct{})
	var runs peak
	for _, f := range followers {
		f.Worker(t, "calls", 10, func(ctx context.Context, _ *overhop.Quest) (overhop.Raw, error) {
			runs.begin()
			defer runs.end()
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil, ctx.Err()
		})
	}
	spec := func(customer string, more string) string {
		return fmt.Sprintf(`{"params":{"customer":%q}%s}`, customer, more)
	}
	var earlier, running []job.ID
	for range 3 {
		earlier = append(earlier, m.Enqueue(t, "calls", spec("acme", `,"delay_ms":3600000`)))
	}
	for range 2 {
		running = append(running, m.Enqueue(t, "calls", spec("acme", "")))
	}
	for _, id := range running {
		m.WaitState(t, id.String(), "active")
	}
	authority.Isolate()
	for _, id := range earlier {
		cl.Eventually("the delayed job is due", func() error { return m.API("job.set", map[string]any{"id": id, "delay_ms": 0}, nil) })
	}
	var later []job.ID
	for range 3 {
		later = append(later, m.Enqueue(t, "calls", spec("acme", `,"priority":9`)))
	}
	other := m.Enqueue(t, "calls", spec("beta", "")) // shows that the new authority has placed what it may
	m.WaitState(t, other.String(), "active")
	for _, id := range slices.Concat(earlier, later) {
		var e explanation
		cl.Eventually("the job is explained by the key", func() error {
			e = explanation{}
			err := m.API("job.explain", api.JobRequest{ID: id.String()}, &e)
			if err == nil && !strings.Contains(e.codes(), "limit_key_full") {
				err = fmt.Errorf("the job is %s, explained by %q", e.State, e.codes())
			}
			return err
		})
	}
	if n := runs.most.Load(); n != 3 {
		t.Errorf("%d jobs ran at the same time, want 2 of acme and 1 of beta", n)
	}
	close(release)
	for _, id := range slices.Concat(earlier, running, later) {
		if j := m.WaitOutcome(t, id.String()); j.State != "completed" {
			t.Errorf("job %s is %s: %s", id, j.State, j.Reason)
		}
	}
	if n := runs.most.Load(); n > 3 {
		t.Errorf("%d jobs ran at the same time", n)
	}
	cl.Heal()
}

// TestLimit_OneOfAGroup runs jobs of a group one at a time, with workers that take ten at once
// and jobs that fail and are tried again, and requires that the waiting jobs of the group are
// listed and counted like all others.
func TestLimit_OneOfAGroup(t *testing.T) {
	t.Parallel()
	cl := clustertest.Start(t, 3)
	m := cl.Members[0]
	perKey(t, m, cl, "orders", 1, api.RetryRuleChange{BackoffMS: api.SetTo[int64](20), Jitter: api.SetTo[int64](0)})
	hold := make(chan struct{})
	var runs peak
	var failures atomic.Int64
	for _, member := range cl.Members {
		member.Worker(t, "orders", 10, func(context.Context, *overhop.Quest) (overhop.Raw, error) {
			runs.begin()
			defer runs.end()
			<-hold
			time.Sleep(2 * time.Millisecond) // time for another run to begin
			if failures.Add(1)%3 == 1 {
				return nil, errors.New("not this time")
			}
			return nil, nil
		})
	}
	const jobs = 12
	var ids []job.ID
	for range jobs {
		ids = append(ids, m.Enqueue(t, "orders", `{"params":{"customer":"this-is-a-test"},"max_attempts":100}`))
	}
	for _, member := range cl.Members {
		cl.Eventually("one job runs and the others are listed as waiting", func() error {
			var list api.JobList
			if err := member.API("job.list", api.JobListRequest{Queues: []string{"orders"}}, &list); err != nil {
				return err
			}
			states := make(map[string]int)
			for i := range list.Jobs {
				states[list.Jobs[i].State]++
			}
			if states["active"] != 1 || states["waiting"] != jobs-1 || list.Totals["waiting"] != jobs-1 || list.Totals["active"] != 1 {
				return fmt.Errorf("%v are listed, the totals are %v", states, list.Totals)
			}
			return nil
		})
	}
	close(hold)
	for _, id := range ids {
		if j := m.WaitOutcome(t, id.String()); j.State != "completed" {
			t.Errorf("job %s is %s: %s", id, j.State, j.Reason)
		}
	}
	if n := runs.most.Load(); n != 1 {
		t.Errorf("%d jobs of the group ran at the same time", n)
	}
	if failures.Load() <= jobs {
		t.Error("no job was tried again")
	}
}
