package node

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
)

// Jobs of a queue are cancelled and removed by state and function, over HTTP and NATS. A
// dry run changes nothing, a request has a limit, and clearing leaves one act.
func TestWeb_QueueJobs(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	c := dialAs(t, n, cluster.DialOptions{})
	send(t, n, "PUT", "/v1/queues/mail", "{}").decode(t, http.StatusOK, nil)
	for i := range 6 {
		body := fmt.Sprintf(`{"function":"f%d","id":"j%d"}`, i%2, i)
		if i == 5 {
			body = `{"function":"f1","id":"j5","delay_ms":3600000}`
		}
		send(t, n, "POST", "/v1/queues/mail/jobs", body).decode(t, http.StatusAccepted, nil)
	}
	waitUntil(t, "all jobs are in the ledger", func() bool {
		var q api.Queue
		send(t, n, "GET", "/v1/queues/mail", "").decode(t, http.StatusOK, &q)
		return q.Counts["waiting"] == 5 && q.Counts["delayed"] == 1
	})
	change := func(verb, body string) (r api.QueueJobsReply) {
		t.Helper()
		send(t, n, "POST", "/v1/queues/mail/"+verb, body).decode(t, http.StatusOK, &r)
		return r
	}
	if got := send(t, n, "POST", "/v1/queues/mail/clear", `{"function":"none"}`); !strings.Contains(string(got.body), `"jobs":[]`) {
		t.Errorf("no job is selected: %s", got)
	}
	if r := change("cancel", `{"function":"f0","dry_run":true}`); len(r.Jobs) != 3 || r.Changed != 0 || !r.DryRun {
		t.Errorf("dry run: %+v", r)
	}
	if r := change("cancel", `{"function":"f0","states":["waiting"],"limit":2}`); r.Changed != 2 || !r.More {
		t.Errorf("two of three: %+v", r)
	}
	if r := change("cancel", `{"function":"f0","states":["waiting"]}`); r.Changed != 1 || r.More {
		t.Errorf("the third: %+v", r)
	}
	if r := change("clear", `{"states":["delayed"]}`); r.Changed != 1 || r.Jobs[0].State != "delayed" {
		t.Errorf("the delayed job: %+v", r)
	}
	if _, err := c.Request(t.Context(), api.Subject("queue-clear"), []byte(`{"name":"mail","all":true}`)); err != nil {
		t.Fatal(err)
	}
	var q api.Queue
	send(t, n, "GET", "/v1/queues/mail", "").decode(t, http.StatusOK, &q)
	for state, count := range q.Counts {
		if count > 0 {
			t.Errorf("%d jobs are %s", count, state)
		}
	}
	for path, want := range map[string]int{"/v1/queues/mail/clear": 400, "/v1/queues/none/cancel": 404} {
		body := map[int]string{400: `{"states":["active"]}`, 404: `{"all":true}`}[want]
		if got := send(t, n, "POST", path, body); got.status != want {
			t.Errorf("%s %s: %s, want %d", path, body, got, want)
		}
	}
	got := acts(t, c, 6)[1:]
	for i, want := range []string{"job.cancel", "job.cancel", "job.cancel", "queue.clear", "queue.clear"} {
		if got[i].Action != want {
			t.Errorf("act %d is %+v, want %s", i, got[i], want)
		}
	}
	if got[4].Target != "jobs removed: 5" {
		t.Errorf("the last act is %+v", got[4])
	}
}
