package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// serveInOrder serves the queue mail, one job at a time. started returns the functions of
// the jobs in the order in which they started; jobs of the function "hold" run until
// release is called.
func serveInOrder(t *testing.T, n *Node) (started func() []string, release func()) {
	var mu sync.Mutex
	var order []string
	released := make(chan struct{})
	send(t, n, "PUT", "/v1/queues/mail", `{"concurrency_limit":1}`).decode(t, http.StatusOK, nil)
	serve(t, n, "mail", func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error) {
		mu.Lock()
		order = append(order, q.Function)
		mu.Unlock()
		if q.Function == "hold" {
			select {
			case <-released:
			case <-ctx.Done():
			}
		}
		return nil, nil
	})
	started = func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(order)
	}
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	return started, release
}

// A job that has not started is run now, put off or given another priority, over HTTP and
// NATS. A job that runs or has ended is refused.
func TestWeb_JobSettings(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	c := dialAs(t, n, cluster.DialOptions{})
	started, release := serveInOrder(t, n)
	add := func(key, more string) {
		t.Helper()
		send(t, n, "POST", "/v1/queues/mail/jobs", fmt.Sprintf(`{"id":%q,"function":%[1]q%s}`, key, more)).decode(t, http.StatusAccepted, nil)
	}
	show := func(key string) (j api.Job) {
		t.Helper()
		send(t, n, "GET", "/v1/jobs/mail:"+key, "").decode(t, http.StatusOK, &j)
		return j
	}
	change := func(key, body, state string) {
		t.Helper()
		var changed api.JobChanged
		send(t, n, "PATCH", "/v1/jobs/mail:"+key, body).decode(t, http.StatusOK, &changed)
		if j := show(key); changed.ID != j.ID || changed.State != state || j.State != state {
			t.Errorf("%s with %s is %+v, then %s; want %s", key, body, changed, j.State, state)
		}
	}
	add("hold", "")
	waitUntil(t, "a job runs", func() bool { return len(started()) == 1 })
	add("plain", "")
	add("put-off", "")
	add("low", `,"priority":1`)
	add("tomorrow", `,"delay_ms":86400000`)

	change("tomorrow", `{"delay_ms":0}`, "waiting")
	if due := show("tomorrow").RunAt; due.After(time.Now()) {
		t.Errorf("a job that is to start now is due at %s", due)
	}
	change("low", `{"priority":9}`, "waiting")
	change("low", `{"priority":9}`, "waiting")
	put, err := c.Request(t.Context(), api.Subject("job-set"), []byte(`{"id":"put-off","queue":"mail","run_at":"2099-01-02T03:04:05Z","priority":3}`))
	if err != nil || !strings.Contains(string(put), `"state":"delayed"`) {
		t.Errorf("over NATS: %s, %v", put, err)
	}
	if j := show("put-off"); !j.RunAt.Equal(time.Date(2099, 1, 2, 3, 4, 5, 0, time.UTC)) || j.Priority != 3 {
		t.Errorf("put off: %+v", j)
	}

	for _, tt := range []struct {
		key, body string
		status    int
		reason    string
	}{
		{"hold", `{"priority":1}`, 409, "active"}, {"plain", `{}`, 400, "changes nothing"},
		{"plain", `{"delay_ms":0,"run_at":"2099-01-01T00:00:00Z"}`, 400, "exclude"}, {"plain", `{"priority":10}`, 400, "0 to 9"},
		{"plain", `{"run_at":"9999-01-01T00:00:00Z"}`, 400, "1970 to 2200"}, {"plain", `{"delay_ms":-1}`, 400, "delay_ms"},
		{"plain", `{"state":"active"}`, 400, "state"}, {"nobody", `{"priority":1}`, 404, "does not exist"},
	} {
		if got := send(t, n, "PATCH", "/v1/jobs/mail:"+tt.key, tt.body); got.status != tt.status || !strings.Contains(string(got.body), tt.reason) {
			t.Errorf("%s with %s: %s, want %d and %q", tt.key, tt.body, got, tt.status, tt.reason)
		}
	}
	release()
	waitUntil(t, "all but one job have run", func() bool {
		return show("plain").State == "completed" && show("tomorrow").State == "completed"
	})
	if diff := cmp.Diff([]string{"hold", "low", "plain", "tomorrow"}, started()); diff != "" {
		t.Errorf("order: %s", diff)
	}
	var refused *api.Error
	if _, err := c.Request(t.Context(), api.Subject("job-set"), []byte(`{"id":"mail:hold","delay_ms":0}`)); !errors.As(err, &refused) || refused.Code != api.CodeConflict || !strings.Contains(refused.Text, "job replay") {
		t.Errorf("a completed job: %v", err)
	}
	for i, a := range acts(t, c, 4) { // the repetition leaves none
		if want := []string{"queue.add", "job.set", "job.set", "job.set"}; i >= len(want) || a.Action != want[i] || (a.Action == "job.set") != strings.Contains(a.Target, "=") {
			t.Errorf("act %d is %+v", i, a)
		}
	}
}

// The jobs of a queue that a request selects are changed together; a repeated request goes
// on with those that do not have the settings yet.
func TestWeb_QueueJobSettings(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	c := dialAs(t, n, cluster.DialOptions{})
	send(t, n, "PUT", "/v1/queues/mail", "{}").decode(t, http.StatusOK, nil)
	for i := range 5 {
		send(t, n, "POST", "/v1/queues/mail/jobs", fmt.Sprintf(`{"function":"f%d","delay_ms":%d}`, i%2, 3600000*(i/4))).decode(t, http.StatusAccepted, nil)
	}
	count := func(state string) int {
		var q api.Queue
		send(t, n, "GET", "/v1/queues/mail", "").decode(t, http.StatusOK, &q)
		return q.Counts[state]
	}
	waitUntil(t, "all jobs are in the ledger", func() bool { return count("waiting") == 4 && count("delayed") == 1 })
	change := func(body string) (r api.QueueJobsReply) {
		t.Helper()
		send(t, n, "PATCH", "/v1/queues/mail/jobs", body).decode(t, http.StatusOK, &r)
		return r
	}
	if r := change(`{"function":"f0","run_at":"2099-01-01T00:00:00Z","dry_run":true}`); len(r.Jobs) != 3 || r.Changed != 0 || count("delayed") != 1 {
		t.Errorf("dry run: %+v", r)
	}
	if r := change(`{"function":"f0","run_at":"2099-01-01T00:00:00Z","limit":2}`); r.Changed != 2 || !r.More {
		t.Errorf("two of three: %+v", r)
	}
	if r := change(`{"function":"f0","run_at":"2099-01-01T00:00:00Z","limit":2}`); r.Changed != 1 || r.More || count("delayed") != 3 {
		t.Errorf("the third: %+v", r)
	}
	reply, err := c.Request(t.Context(), api.Subject("queue-set-jobs"), []byte(`{"name":"mail","all":true,"delay_ms":0,"priority":8}`))
	var r api.QueueJobsReply
	if err == nil {
		err = json.Unmarshal(reply, &r)
	}
	if err != nil || r.Changed != 5 || count("waiting") != 5 {
		t.Errorf("all over NATS: %s, %v", reply, err)
	}
	for _, body := range []string{`{"all":true}`, `{"priority":1}`, `{"all":true,"delay_ms":5}`, `{"states":["active"],"priority":1}`} {
		if got := send(t, n, "PATCH", "/v1/queues/mail/jobs", body); got.status != http.StatusBadRequest {
			t.Errorf("%s: %s", body, got)
		}
	}
	if got := acts(t, c, 4); got[3].Action != "queue.set-jobs" || got[3].Target != "priority=8 run_at=now, jobs changed: 5" {
		t.Errorf("acts: %+v", got)
	}
}
