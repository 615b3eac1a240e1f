package node

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/deadletters"
)

// operate starts an operation and waits for its end.
func operate(t *testing.T, n *Node, start string) api.Operation {
	t.Helper()
	var op api.Operation
	send(t, n, "POST", "/v1/operations", start).decode(t, http.StatusAccepted, &op)
	return awaitOperation(t, n, op.ID)
}

// awaitOperation waits for the end of an operation.
func awaitOperation(t *testing.T, n *Node, id uint64) (op api.Operation) {
	t.Helper()
	waitUntil(t, "the operation has ended", func() bool {
		send(t, n, "GET", fmt.Sprintf("/v1/operations/%d", id), "").decode(t, http.StatusOK, &op)
		return op.Ended != nil
	})
	return op
}

// wantCounts compares the counts of an operation that is done.
func wantCounts(t *testing.T, op api.Operation, changed, skipped, failed uint64) {
	t.Helper()
	if op.State != "done" || op.Changed != changed || op.Skipped != skipped || op.Failed != failed || op.Matched != changed+skipped+failed {
		t.Errorf("%+v; want %d changed, %d skipped, %d failed", op, changed, skipped, failed)
	}
}

// Jobs are cancelled, retried and removed by a query. What an operation does is what its preview
// shows, each job has its own act, and jobs that are accepted later stay as they are.
func TestWeb_Operations(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for i := range 6 {
		send(t, n, "POST", "/v1/queues/mail/jobs", fmt.Sprintf(`{"function":"f%d","id":"j%d"}`, i%2, i)).decode(t, http.StatusAccepted, nil)
	}
	wantWaiting(t, n, "mail", 6)
	var preview api.OperationPreview
	send(t, n, "POST", "/v1/operations/preview", `{"action":"cancel","query":"queue:mail function:f1 created:>1d"}`).decode(t, http.StatusOK, &preview)
	if preview.Matched != 3 || preview.Applicable != 3 || preview.AtLeast || preview.States["waiting"] != 3 || len(preview.Sample) != 3 || strings.Contains(preview.Query, "1d") {
		t.Errorf("preview: %+v", preview)
	}
	cancelled := operate(t, n, `{"action":"cancel","query":"queue:mail function:f1 created:>1d"}`)
	wantCounts(t, cancelled, 3, 0, 0)
	if cancelled.Expected != 3 || cancelled.Reached == nil || cancelled.Actor == "" || cancelled.Door != "http" || cancelled.Query != cancelled.Query {
		t.Errorf("%+v", cancelled)
	}
	wantWaiting(t, n, "mail", 3)
	wantCounts(t, operate(t, n, `{"action":"retry","query":"queue:mail"}`), 3, 3, 0)
	wantWaiting(t, n, "mail", 6)
	wantCounts(t, operate(t, n, `{"action":"remove","query":"queue:mail state:waiting","rate":100000}`), 6, 0, 0)
	wantWaiting(t, n, "mail", 0)

	var list api.OperationList
	send(t, n, "GET", "/v1/operations?limit=2", "").decode(t, http.StatusOK, &list)
	if len(list.Operations) != 2 || list.Operations[0].Action != "remove" || list.Next != list.Operations[1].ID {
		t.Errorf("list: %+v", list)
	}
	var last api.OperationList
	send(t, n, "GET", fmt.Sprintf("/v1/operations?limit=2&after=%d", list.Next), "").decode(t, http.StatusOK, &last)
	if len(last.Operations) != 1 || last.Operations[0].Action != "cancel" || last.Next != 0 {
		t.Errorf("the last page: %+v", last)
	}
	c := dialAs(t, n, cluster.DialOptions{})
	counts := map[string]int{}
	for _, act := range acts(t, c, 15) {
		if counts[act.Action]++; strings.HasPrefix(act.Action, "job.") && !strings.HasPrefix(act.Reason, "operation ") {
			t.Errorf("act of a job: %+v", act)
		}
	}
	for action, want := range map[string]int{"operation.start": 3, "job.cancel": 3, "job.retry": 3, "job.remove": 6} {
		if counts[action] != want {
			t.Errorf("%d acts %s, want %d: %v", counts[action], action, want, counts)
		}
	}
}

// A refused request says what is wrong with it.
func TestWeb_Operations_Refused(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for _, c := range []struct {
		request, body, want string
		status              int
	}{
		{"POST /v1/operations", `{"action":"explode","query":"id:*"}`, "must be retry, cancel, remove or requeue", 400},
		{"POST /v1/operations", `{"action":"retry","query":""}`, "query selects nothing", 400},
		{"POST /v1/operations", `{"action":"retry","query":"sort:ended"}`, "query selects nothing", 400},
		{"POST /v1/operations", `{"action":"retry","query":"queue:mail stat:failed"}`, "at byte 11: no field is called", 400},
		{"POST /v1/operations/preview", `{"action":"retry","query":"id:*","params":{"a":1}}`, "params and to are for the action requeue", 400},
		{"POST /v1/operations", `{"action":"requeue","query":"id:*","params":[1]}`, "params: it is not a JSON object", 400},
		{"POST /v1/operations", `{"action":"requeue","query":"id:*","to":"none"}`, "none", 404},
		{"POST /v1/operations", `{"action":"retry","query":"id:*","rate":100001}`, "must be 0 to 100000", 400},
		{"POST /v1/operations", `{"action":"retry"}`, "query", 400},
		{"GET /v1/operations/7", "", "operation 7 does not exist", 404},
		{"POST /v1/operations/7/pause", "", "operation 7 does not exist", 404},
		{"PATCH /v1/operations/7", `{"rate":5}`, "operation 7 does not exist", 404},
		{"GET /v1/operations?limit=101", "", "must be 1 to 100", 400},
	} {
		method, path, _ := strings.Cut(c.request, " ")
		if got := send(t, n, method, path, c.body); got.status != c.status || !strings.Contains(string(got.body), c.want) {
			t.Errorf("%s %s: %s; want %d, %q", c.request, c.body, got, c.status, c.want)
		}
	}
	done := operate(t, n, `{"action":"retry","query":"id:*","key":"k"}`)
	var again api.Operation
	if send(t, n, "POST", "/v1/operations", `{"action":"retry","query":"id:*","key":"k"}`).decode(t, http.StatusAccepted, &again); again.ID != done.ID {
		t.Errorf("a request with the same key started %+v", again)
	}
	if got := send(t, n, "POST", fmt.Sprintf("/v1/operations/%d/cancel", done.ID), ""); got.status != http.StatusConflict {
		t.Errorf("cancelling an operation that is done: %s", got)
	}
}

// An operation with a rate is paused and resumed, and its rate is raised.
func TestWeb_Operations_Rate(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for i := range 8 {
		send(t, n, "POST", "/v1/queues/mail/jobs", fmt.Sprintf(`{"id":"j%d","function":"f"}`, i)).decode(t, http.StatusAccepted, nil)
	}
	wantWaiting(t, n, "mail", 8)
	var op api.Operation
	send(t, n, "POST", "/v1/operations", `{"action":"cancel","query":"queue:mail","rate":1}`).decode(t, http.StatusAccepted, &op)
	path := fmt.Sprintf("/v1/operations/%d", op.ID)
	waitUntil(t, "a job is cancelled", func() bool {
		send(t, n, "GET", path, "").decode(t, http.StatusOK, &op)
		return op.Changed > 0
	})
	send(t, n, "POST", path+"/pause", "").decode(t, http.StatusOK, &op)
	if op.State != "paused" || op.Changed == 8 {
		t.Fatalf("paused: %+v", op)
	}
	waiting := int(8 - op.Changed)
	wantWaiting(t, n, "mail", waiting)
	send(t, n, "PATCH", path, `{"rate":0}`).decode(t, http.StatusOK, &op)
	if op.State != "paused" || op.Rate != 0 {
		t.Errorf("with another rate: %+v", op)
	}
	send(t, n, "POST", path+"/resume", "").decode(t, http.StatusOK, nil)
	wantCounts(t, awaitOperation(t, n, op.ID), 8, 0, 0)
	wantWaiting(t, n, "mail", 0)
}

// Dead letters are requeued by a query: as they are under their own ids, with other params as new
// jobs. Jobs whose new params do not match the schema stay dead letters.
func TestWeb_Operations_Requeue(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	letters := func() int {
		var stats api.DeadLetterStats
		send(t, n, "GET", "/v1/dlq/stats", "").decode(t, http.StatusOK, &stats)
		return stats.Count
	}
	send(t, n, "PUT", "/v1/queues/mail", "").decode(t, http.StatusOK, nil)
	send(t, n, "POST", "/v1/queues/mail/pause", "").decode(t, http.StatusOK, nil)
	own := failedJob(t, n, "mail", `{"function":"a","params":{"to":"bob"}}`)
	wantCounts(t, operate(t, n, `{"action":"requeue","query":"function:a state:failed"}`), 1, 0, 0)
	wantWaiting(t, n, "mail", 1)
	waitUntil(t, "the letter is removed", func() bool { return letters() == 0 })
	failedLetter(t, n, own.job, own.Number)

	for i := range 3 {
		failedJob(t, n, "mail", fmt.Sprintf(`{"function":"b","params":{"n":%d,"timeout":"long"}}`, 1<<53+i))
	}
	purgeRecord(t, n, failedJob(t, n, "mail", `{"function":"c","params":{"n":4}}`).job)
	send(t, n, "PUT", "/v1/schemas/mail", `{"function":"b","schema":{"properties":{"n":{"maximum":9007199254740993}}}}`).decode(t, http.StatusOK, nil)
	request := `{"action":"requeue","query":"state:failed function:b,c","params":{"timeout":30}}`
	var preview api.OperationPreview
	send(t, n, "POST", "/v1/operations/preview", request).decode(t, http.StatusOK, &preview)
	if preview.Applicable != 4 || len(preview.Sample) != 4 || string(preview.Sample[1].Params) != `{"n":9007199254740993,"timeout":30}` ||
		preview.Sample[1].Refused != "" || !strings.Contains(preview.Sample[2].Refused, "must be at most 9007199254740993") {
		t.Errorf("preview: %+v", preview)
	}
	op := operate(t, n, request)
	wantCounts(t, op, 3, 0, 1)
	if len(op.Failures) != 1 || !strings.Contains(op.Failures[0].Error, "must be at most 9007199254740993") {
		t.Errorf("failures: %+v", op.Failures)
	}
	wantWaiting(t, n, "mail", 3)
	waitUntil(t, "the letters of the new jobs are removed", func() bool { return letters() == 2 })
	var jobs api.JobList
	send(t, n, "GET", "/v1/jobs?"+url.Values{"queues": {"mail"}, "states": {"waiting"}}.Encode(), "").decode(t, http.StatusOK, &jobs)
	var params []string
	for i := range jobs.Jobs {
		params = append(params, string(jobs.Jobs[i].Params))
	}
	slices.Sort(params)
	if want := []string{`{"n":4,"timeout":30}`, `{"n":9007199254740992,"timeout":30}`, `{"n":9007199254740993,"timeout":30}`}; !slices.Equal(params, want) {
		t.Errorf("params %s, want %s", params, want)
	}
	wantCounts(t, operate(t, n, request), 0, 3, 1) // nothing is done twice
}

// A retry restores the records that were purged, of all jobs of a step at once.
func TestWeb_Operations_RestoresRecords(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(t, n, "PUT", "/v1/queues/mail", "").decode(t, http.StatusOK, nil)
	send(t, n, "POST", "/v1/queues/mail/pause", "").decode(t, http.StatusOK, nil)
	var last job.ID
	for i := range 5 {
		last = failedJob(t, n, "mail", fmt.Sprintf(`{"params":{"i":%d}}`, i)).job
	}
	purgeRecord(t, n, last)
	wantCounts(t, operate(t, n, `{"action":"retry","query":"queue:mail state:failed"}`), 5, 0, 0)
	var shown api.Job
	send(t, n, "GET", "/v1/jobs/"+last.String(), "").decode(t, http.StatusOK, &shown)
	if shown.State != "waiting" || string(shown.Params) != `{"i":4}` || shown.Dispatches != 2 {
		t.Errorf("%+v", shown)
	}
}

// A job that was created from a dead letter before the operation began is not created again.
func TestOperations_CreatedBefore(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	failed := failedJob(t, n, "mail", `{"params":{"i":1}}`)
	settings := ledger.OperationSettings{Action: ledger.OperationRequeue, Query: "state:failed", Until: failed.Failed.Add(time.Hour), Params: []byte(`{"i":2}`)}
	propose := func(c ledger.Command) {
		t.Helper()
		if _, err := n.proposer.Propose(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	created, err := n.deadLetters.Create(t.Context(), &deadletters.NewJob{Job: failed.job, DeadLetter: 1, Params: settings.Params})
	if err != nil || created.Before || created.ID != failed.requeueID() {
		t.Fatalf("created: %+v, %v", created, err)
	}
	propose(&ledger.StartOperation{Settings: settings})
	wantCounts(t, awaitOperation(t, n, 1), 0, 1, 0) // created before it began
	wantWaiting(t, n, "mail", 1)
}
