package node

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
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
	if list := getList(t, n, "states=failed&function=bad"); len(list.Jobs) != 3 {
		t.Errorf("%d failed jobs are listed", len(list.Jobs))
	}
	if list := getList(t, n, "states=waiting"); len(list.Jobs) != 0 {
		t.Errorf("%d waiting jobs are listed", len(list.Jobs))
	}

	for _, path := range []string{"k0?queue=mail", "k0", want[0].String(), "mail:k0", "k0/wait"} {
		var shown api.Job
		send(t, n, "GET", "/v1/jobs/"+path, "").decode(t, http.StatusOK, &shown)
		if shown.ID != want[0] || shown.State != "completed" || string(shown.Result) != `"ok"` || shown.Key != "k0" || shown.Attempts != 1 || shown.MaxAttempts != 7 ||
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
		send(t, n, method, path, "{}").decode(t, http.StatusConflict, nil)
	}
}
