package node

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
)

// TestForgottenJobs checks that jobs which the ledger has forgotten are listed, shown, explained and
// waited for like those that it has.
func TestForgottenJobs(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(t, n, "PUT", "/v1/queues/mail", `{"retention":{"finished":{"count":3}}}`).decode(t, http.StatusOK, nil)
	serve(t, n, "mail", func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		if strings.HasPrefix(q.Function, "bad") {
			return nil, &overhop.FailError{Message: "no such mailbox", Final: true}
		}
		return overhop.Raw("\xa2ok"), nil
	})
	const jobs = 12
	var want []job.ID
	for i := range jobs {
		var done api.Job
		function := "send"
		if i%4 == 1 {
			function = "bad"
		}
		body := fmt.Sprintf(`{"id":"k%d","function":%q,"params":{"n":%d},"tags":["t"],"max_attempts":7}`, i, function, i)
		send(t, n, "POST", "/v1/queues/mail/jobs?wait=20s", body).decode(t, http.StatusOK, &done)
		want = append(want, done.ID)
	}
	kept := 0
	n.raft.View(func(l *ledger.Ledger) {
		for _, id := range want {
			if _, _, ok := l.Find(id); ok {
				kept++
			}
		}
	})
	if kept == jobs {
		t.Fatal("the ledger has forgotten no job")
	}

	for _, order := range []string{"oldest", "newest"} {
		var got []job.ID
		for query := "queues=mail&limit=5&order=" + order; ; {
			list := getList(t, n, query)
			got = append(got, ids(&list)...)
			if list.Next == "" {
				break
			}
			query = "queues=mail&limit=5&order=" + order + "&after=" + list.Next
		}
		if order == "newest" {
			slices.Reverse(got)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s first: %d jobs %v, want %v", order, len(got), got, want)
		}
	}
	if list := getList(t, n, "states=failed&function=bad"); len(list.Jobs) != 3 || list.Lacking != "" {
		t.Errorf("%d failed jobs are listed, the list lacks %q", len(list.Jobs), list.Lacking)
	}
	for _, j := range getList(t, n, "").Jobs {
		kept := false
		n.raft.View(func(l *ledger.Ledger) { _, _, kept = l.Find(j.ID) })
		if j.Forgotten == kept {
			t.Errorf("the list says of %s, which the ledger has (%t), that it is forgotten: %t", j.ID, kept, j.Forgotten)
		}
	}
	if list := getList(t, n, "states=waiting"); len(list.Jobs) != 0 {
		t.Errorf("%d waiting jobs are listed", len(list.Jobs))
	}

	for _, path := range []string{"k0?queue=mail", "k0", want[0].String(), "mail:k0", "k0/wait"} {
		var shown api.Job
		send(t, n, "GET", "/v1/jobs/"+path, "").decode(t, http.StatusOK, &shown)
		if shown.ID != want[0] || shown.State != "completed" || !shown.Forgotten || string(shown.Result) != `"ok"` || shown.Key != "k0" || shown.Attempts != 1 || shown.MaxAttempts != 7 ||
			shown.Ended == nil || shown.Node == "" || shown.Worker == "" || !slices.Equal(shown.Tags, []string{"t"}) || !shown.PayloadGone && string(shown.Params) != `{"n":0}` {
			t.Errorf("%s: %+v", path, shown)
		}
	}
	if r := send(t, n, "GET", "/v1/jobs/k0/result", ""); r.status != http.StatusOK {
		t.Errorf("result: %d", r.status)
	}
	var why api.JobExplanation
	send(t, n, "GET", "/v1/jobs/k0/explain", "").decode(t, http.StatusOK, &why)
	if why.State != "completed" || !strings.Contains(why.Verdict, "It completed at") || len(why.History.Events) < 3 {
		t.Errorf("explained as %s: %s, with %d events", why.State, why.Verdict, len(why.History.Events))
	}
	var failed api.Job
	send(t, n, "GET", "/v1/jobs/k1", "").decode(t, http.StatusOK, &failed)
	if failed.State != "failed" || failed.Error == nil || failed.Error.Message != "no such mailbox" || string(failed.Params) != `{"n":1}` || failed.LetterGone {
		t.Errorf("failed: %+v", failed)
	}
	for _, change := range []string{"POST /v1/jobs/k0/cancel", "POST /v1/jobs/k0/retry"} {
		method, path, _ := strings.Cut(change, " ")
		r := send(t, n, method, path, "{}")
		const want = " is completed, and the ledger has forgotten it, so that it can be found, but not changed; 'yardmaster job replay' enqueues a copy of it"
		if r.status != http.StatusConflict || !strings.Contains(string(r.body), want) {
			t.Errorf("%s: %s", change, r)
		}
	}
	checkRebuilding(t, n, want[0], want[1])
}

// lackingIndex is an index that is being rebuilt and does not have the job that is asked for yet.
type lackingIndex struct {
	jobview.Index
	asked chan struct{} // receives a value at each search
}

func (x *lackingIndex) FindJobs(context.Context, *query.Query, ledger.JobPlace, int) (ledger.FoundJobs, error) {
	select {
	case x.asked <- struct{}{}:
	default:
	}
	return ledger.FoundJobs{Lacking: &job.UnavailableError{Reason: "the index, which is being rebuilt: 37 % of the history is read", RetryAfter: time.Millisecond}}, nil
}

// checkRebuilding checks what is said of jobs that the ledger has forgotten while the index is being rebuilt.
func checkRebuilding(t *testing.T, n *Node, completed, failed job.ID) {
	x := &lackingIndex{Index: n.viewer.Index, asked: make(chan struct{}, 1)}
	n.viewer.Index = x
	const want = "may be in the index, which is being rebuilt: 37 % of the history is read; try again in"
	for _, request := range []string{
		"GET /v1/jobs/k0", "GET /v1/jobs/mail:k0", "GET /v1/jobs/k0?queue=mail", "GET /v1/jobs/" + completed.String(), "GET /v1/jobs/k0/result", "GET /v1/jobs/k0/wait?timeout=50ms",
		"POST /v1/jobs/" + completed.String() + "/cancel", "POST /v1/jobs/k0/retry", "GET /v1/jobs/no-such-job",
	} {
		method, path, _ := strings.Cut(request, " ")
		r := send(t, n, method, path, "")
		if r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" || !strings.Contains(string(r.body), want) {
			t.Errorf("%s: %d %s", request, r.status, r.body)
		}
	}
	if list := getList(t, n, ""); !strings.Contains(list.Lacking, "which is being rebuilt") {
		t.Errorf("the list lacks %q", list.Lacking)
	}
	if list := getList(t, n, "states=waiting"); list.Lacking != "" {
		t.Errorf("the list of waiting jobs lacks %q", list.Lacking)
	}
	var why api.JobExplanation
	send(t, n, "GET", "/v1/jobs/k0/explain", "").decode(t, http.StatusOK, &why)
	if why.State != "unknown" || why.ID != completed || !strings.Contains(why.Verdict, want) {
		t.Errorf("explained as %s: %s", why.State, why.Verdict)
	}
	send(t, n, "POST", "/v1/jobs/"+failed.String()+"/replay", "{}").decode(t, http.StatusOK, nil) // from its dead letter

	if _, _, err := n.workers.Session("w1").Job(t.Context(), completed); !strings.Contains(fmt.Sprint(err), want) {
		t.Errorf("to a worker: %v", err)
	}
	select {
	case <-x.asked:
	default:
	}
	ended := make(chan error, 1)
	go func() {
		view, err := n.workers.Session("w1").Await(t.Context(), completed)
		if err == nil && view.State != job.Completed {
			err = fmt.Errorf("job is %s", view.State)
		}
		ended <- err
	}()
	<-x.asked
	select {
	case err := <-ended:
		t.Errorf("a worker that waits is answered: %v", err)
	case <-x.asked: // the session has asked again
	}
}
