package clustertest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// cronEntry is an entry as reported by a node.
type cronEntry struct {
	Name     string
	State    string
	Declared bool
	Upcoming []time.Time
	Last     time.Time
	LastJob  job.ID `json:"last_job"`
	Fired    int
	Missed   int `json:"missed_count"`
}

func cronOf(m *clustertest.Member, name string) (cronEntry, error) {
	var page struct{ Entries []cronEntry }
	if err := m.API("cron.list", nil, &page); err != nil {
		return cronEntry{}, err
	}
	for _, e := range page.Entries {
		if e.Name == name {
			return e, nil
		}
	}
	return cronEntry{}, fmt.Errorf("%s has no entry %s", m.Name, name)
}

// cronTicks checks that an entry that ticks every second misses and repeats no second
// while the authority changes, in the ledger, in the lanes and at the worker. The entry
// of the configuration ticks at the same time.
func cronTicks(t *testing.T, cl *clustertest.Cluster) {
	a, b := cl.Members[0], cl.Members[1]
	a.AddQueue(t, "ticking", 0)
	var mu sync.Mutex
	runs := map[string]int{}
	b.Worker(t, "ticking", 8, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		mu.Lock()
		defer mu.Unlock()
		runs[q.JID]++
		return nil, nil
	})
	entry := map[string]any{"name": "tick", "schedule": "* * * * * *", "queue": "ticking", "job": map[string]any{"params": map[string]any{"a": 1}}}
	var added cronEntry
	if err := a.API("cron.add", entry, &added); err != nil {
		t.Fatal(err)
	}
	if len(added.Upcoming) != 3 || added.Upcoming[1].Sub(added.Upcoming[0]) != time.Second || added.State != "running" {
		t.Fatalf("%+v", added)
	}
	first := added.Upcoming[0]
	fired := func(n int) (e cronEntry) {
		cl.Eventually(fmt.Sprint(n, " ticks"), func() (err error) {
			if e, err = cronOf(cl.Members[2], "tick"); err == nil && e.Fired < n {
				err = fmt.Errorf("%d ticks", e.Fired)
			}
			return err
		})
		return e
	}
	fired(2)
	for i, to := range cl.Members {
		command := fmt.Sprintf(`{"command":"AcquireAuthority","owner":%q,"lease_id":"x","leased_until":"2099-01-01T00:00:00Z"}`, to.Name)
		if _, err := exec(to, command); err != nil {
			t.Fatal(err)
		}
		fired(3 + i)
	}
	if err := b.API("cron.pause", map[string]any{"name": "tick"}, &added); err != nil || added.State != "paused" {
		t.Fatalf("%+v, %v", added, err)
	}
	last := added.Last
	if seconds := int(last.Sub(first)/time.Second) + 1; seconds != added.Fired {
		t.Errorf("%d ticks in the %d seconds from %s to %s", added.Fired, seconds, first, last)
	}
	cl.Eventually("all have run", func() error { return a.CheckCount("ticking", "completed", added.Fired) })
	for i := range added.Fired {
		id := job.TickID("tick", last.Add(-time.Duration(i)*time.Second))
		if j := a.Job(t, id.String()); j.State != "completed" {
			t.Errorf("tick %d of %d: %+v", i, added.Fired, j)
		}
	}
	mu.Lock()
	for jid, n := range runs {
		if n != 1 {
			t.Errorf("%s ran %d times", jid, n)
		}
	}
	if len(runs) != added.Fired || added.Missed != 0 {
		t.Errorf("%d jobs ran for %d ticks, %d missed", len(runs), added.Fired, added.Missed)
	}
	mu.Unlock()
	cronVerbs(t, cl, added)
}

// cronVerbs checks the commands for a paused entry, and refusals.
func cronVerbs(t *testing.T, cl *clustertest.Cluster, paused cronEntry) {
	a, b := cl.Members[0], cl.Members[1]
	tick := map[string]any{"name": "tick"}
	var made struct{ ID string }
	if err := a.API("cron.run", tick, &made); err != nil {
		t.Fatal(err)
	}
	if j := b.WaitOutcome(t, made.ID); j.State != "completed" || j.Queue != "ticking" || string(j.Params) != `{"a":1}` {
		t.Errorf("run by hand: %+v %s", j, j.Params)
	}
	for i, m := range cl.Members { // repeated requests make one job
		var again struct {
			ID        string
			Duplicate bool
		}
		err := m.API("cron.run", map[string]any{"name": "tick", "new_id": "by-hand"}, &again)
		if id, _ := job.KeyID("ticking", "by-hand"); err != nil || again.ID != id.String() || again.Duplicate != (i > 0) {
			t.Errorf("%s: %+v, %v", m.Name, again, err)
		}
		b.WaitOutcome(t, again.ID)
		cl.Eventually("the next member has it", func() error { return cl.Members[(i+1)%3].API("job.show", map[string]any{"id": again.ID}, nil) })
	}
	if e, err := cronOf(a, "tick"); err != nil || e.Fired != paused.Fired {
		t.Errorf("paused at %d ticks: %+v, %v", paused.Fired, e, err)
	}
	e, err := cronOf(b, "process")
	if err != nil || !e.Declared || len(e.Upcoming) != 3 {
		t.Errorf("the declared entry is %+v, %v", e, err)
	}
	wantCode(t, a.API("cron.remove", map[string]any{"name": "process"}, nil), "409")
	wantCode(t, a.API("cron.pause", map[string]any{"name": "nobody"}, nil), "404")
	wantCode(t, a.API("cron.show", map[string]any{"name": "nobody"}, nil), "404")
	wantCode(t, a.API("cron.run", map[string]any{"name": "nobody"}, nil), "404")
	wantCode(t, a.API("cron.add", map[string]any{"name": "tick", "schedule": "@daily", "queue": "ticking", "job": map[string]any{"function": "x"}}, nil), "409")
	for field, value := range map[string]any{
		"schedule": "0 0 99 * * *", "time_zone": "Mars", "missed": "never", "overlap": "maybe", "queue": "no good", "name": "no good",
		"job": map[string]any{"function": "x", "unique_key": "k"},
	} {
		bad := map[string]any{"name": "bad", "schedule": "@daily", "queue": "ticking", "job": map[string]any{"function": "x"}}
		bad[field] = value
		wantCode(t, b.API("cron.add", bad, nil), "400")
	}
	if err := b.API("cron.remove", tick, nil); err != nil {
		t.Fatal(err)
	}
	wantCode(t, a.API("cron.remove", tick, nil), "404")
}
