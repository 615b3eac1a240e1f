package node

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/node/config"
	"github.com/yardmaster-dev/yardmaster/server"
	"github.com/yardmaster-dev/yardmaster/server/intake"
)

// list returns the body of a bulk request with n jobs.
func list(queue string, n int, text string) string {
	one := fmt.Sprintf(`{"function":"send","params":{"text":%q}}`, text)
	return fmt.Sprintf(`{"queue":%q,"jobs":[%s]}`, queue, strings.Repeat(one+",", n-1)+one)
}

// A bulk request that is repeated under its key creates no more jobs.
func TestBulk_KeyOfList(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	const named = `{"queue":"mail","jobs":[{"function":"a"},{"function":"b","id":"mine"},{"function":"c"}]}`
	var first, second, other api.BulkReply
	send(t, n, "POST", "/v1/jobs/bulk", named, "Idempotency-Key: list-1").decode(t, http.StatusOK, &first)
	send(t, n, "POST", "/v1/jobs/bulk", named, "Idempotency-Key: list-1").decode(t, http.StatusOK, &second)
	send(t, n, "POST", "/v1/jobs/bulk", named, "Idempotency-Key: list-2").decode(t, http.StatusOK, &other)
	for i, key := range []string{"list-1#0", "mine", "list-1#2"} {
		id, err := job.KeyID("mail", key)
		if err != nil {
			t.Fatal(err)
		}
		if *first.Jobs[i].ID != id || *second.Jobs[i].ID != id || (*other.Jobs[i].ID == id) != (key == "mine") {
			t.Errorf("job %d is %s, %s when repeated, and %s in another list; want %s", i, first.Jobs[i].ID, second.Jobs[i].ID, other.Jobs[i].ID, id)
		}
	}
}

// A bulk request with more jobs than the limits for large bodies and for unknown queues
// waits instead of failing.
func TestBulk_BlocksForSlot(t *testing.T) {
	n := startSingleNode(t, func(c *config.Config) { no := false; c.Scheduler.CreateQueues = &no })
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(t, n, "PUT", "/v1/queues/mail", `{}`).decode(t, http.StatusOK, nil)
	var got api.BulkReply
	send(t, n, "POST", "/v1/jobs/bulk", list("mail", 4*intake.MaxBlobs, strings.Repeat("x", job.MaxInlineBody))).decode(t, http.StatusOK, &got)
	if got.Refused != 0 {
		t.Errorf("%d of %d large jobs were rejected: %+v", got.Refused, len(got.Jobs), got.Jobs[len(got.Jobs)-1].Error)
	}
	got = api.BulkReply{}
	send(t, n, "POST", "/v1/jobs/bulk", list("nothing", 3*intake.MaxBarriers, "")).decode(t, http.StatusOK, &got)
	for i, item := range got.Jobs {
		if item.Error == nil || item.Error.Code != api.CodeNotFound {
			t.Fatalf("job %d for a queue that does not exist: %+v with %+v, want 404", i, item, item.Error)
		}
	}
}

// The errors of a bulk reply fit a NATS message, whatever the jobs contain.
func TestBulk_ErrorTextsBounded(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	said := send(t, n, "POST", "/v1/jobs/bulk", list("mail", 1000, ""), "Yard-Delay: "+strings.Repeat(`"`, 4<<10))
	var got api.BulkReply
	said.decode(t, http.StatusOK, &got)
	if got.Refused != 1000 || got.Jobs[0].Error.Code != api.CodeInvalid || !strings.Contains(got.Jobs[0].Error.Message, "Yard-Delay") {
		t.Errorf("%d rejected, the first with %+v", got.Refused, got.Jobs[0].Error)
	}
	if len(said.body) >= 1<<20 {
		t.Errorf("the reply has %d bytes", len(said.body))
	}
}

// The largest params and result that are shown fit in one reply, also if they consist of
// characters that are escaped in HTML.
func TestCall_LargeResult(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(t, n, "PUT", "/v1/queues/html", "{}").decode(t, http.StatusOK, nil)
	text := strings.Repeat("<", api.MaxShownBytes-100)
	serve(t, n, "html", func(context.Context, *overhop.Quest) (overhop.Raw, error) { return overhop.AppendValue(nil, text), nil })
	c := dialAs(t, n, cluster.DialOptions{})
	for _, r := range []struct{ subject, body string }{
		{api.Subject("call", "html"), `{"id":"k","params":{"text":"` + text + `"}}`},
		{api.Subject("job-show"), `{"id":"k","queue":"html"}`},
	} {
		reply, err := c.Request(t.Context(), r.subject, []byte(r.body))
		if err != nil || !strings.Contains(string(reply), `"result":"`+text+`"`) {
			t.Errorf("%s: %d bytes, %v", r.subject, len(reply), err)
		}
	}
}

// The error of a wait that ends too early carries the id of the accepted job.
func TestWeb_WaitTimeout(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	for path, body := range map[string]string{
		"/v1/queues/mail/jobs?wait=1ms": `{"function":"send"}`,
		"/v1/queues/mail/call":          `{"function":"send","wait_ms":1}`,
	} {
		var said struct {
			Error struct {
				Code string
				Data struct{ ID job.ID }
			}
		}
		send(t, n, "POST", path, body).decode(t, http.StatusRequestTimeout, &said)
		if said.Error.Code != api.CodeTimeout {
			t.Errorf("%s: %+v", path, said)
		}
		var shown api.Job
		send(t, n, "GET", "/v1/jobs/"+said.Error.Data.ID.String(), "").decode(t, http.StatusOK, &shown)
		if shown.State != job.Waiting.String() {
			t.Errorf("%s: the job is in state %s", path, shown.State)
		}
	}
	for _, wait := range []string{"0s", "11m", "long"} {
		send(t, n, "POST", "/v1/queues/mail/jobs?wait="+wait, `{"function":"send"}`).decode(t, http.StatusBadRequest, nil)
	}
}

// A request releases the memory of its body before it waits.
func TestCall_ReleasesRequestBody(t *testing.T) {
	n := startSingleNode(t, nil)
	waits := map[string]server.Handler{
		"called": n.apiHandlers()["call"],
		"waited": n.enqueue.AndWait(time.Minute),
	}
	for key, wait := range waits {
		r := cluster.NewRequest(fmt.Appendf(nil, `{"function":"send","id":%q}`, key), "mail", func(string) string { return "" }, nil)
		freed, ended := make(chan bool, 1), make(chan error, 1)
		r.OnRelease = func() { freed <- r.Data == nil }
		go func() {
			_, err := wait(t.Context(), r)
			ended <- err
		}()
		select {
		case gone := <-freed:
			if !gone {
				t.Errorf("%s: released memory is still used", key)
			}
		case err := <-ended:
			t.Fatalf("%s: returned %v before the end of its job", key, err)
		}
		id, err := job.KeyID("mail", key)
		if err != nil {
			t.Fatal(err)
		}
		waitUntil(t, "the job exists", func() bool {
			_, err := n.proposer.Propose(t.Context(), &ledger.CancelJob{Job: id})
			return err == nil
		})
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// A call that is repeated after the ledger has dropped its job creates no second job and
// has the same answer.
func TestCall_JobForgotten(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var first api.EnqueueReply
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"function":"send","id":"old"}`).decode(t, http.StatusAccepted, &first)
	path := "/v1/jobs/" + first.ID.String()
	send(t, n, "GET", path, "").decode(t, http.StatusOK, nil)
	send(t, n, "POST", path+"/cancel", "").decode(t, http.StatusOK, nil)
	one := job.RetentionSetting{Key: job.RetentionKey{Kept: job.KeptFinished, Bound: job.BoundCount}, Value: 1}
	if _, err := n.proposer.Propose(t.Context(), &ledger.SetRetention{Settings: []job.RetentionSetting{one}}); err != nil {
		t.Fatal(err)
	}
	call := func() httpReply { return send(t, n, "POST", "/v1/queues/mail/call", `{"function":"send","id":"old"}`) }
	before := call()
	var later api.EnqueueReply
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"function":"send"}`).decode(t, http.StatusAccepted, &later)
	send(t, n, "POST", "/v1/jobs/"+later.ID.String()+"/cancel", "").decode(t, http.StatusOK, nil)
	waitUntil(t, "the job is forgotten", func() (forgotten bool) {
		n.raft.View(func(l *ledger.Ledger) {
			_, _, kept := l.Find(first.ID)
			forgotten = !kept
		})
		return forgotten
	})
	var again api.EnqueueReply
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"function":"send","id":"old"}`).decode(t, http.StatusAccepted, &again)
	if again != (api.EnqueueReply{ID: first.ID, Queue: "mail", Duplicate: true}) {
		t.Errorf("enqueued again: %+v", again)
	}
	if after := call(); after.status != before.status || string(after.body) != string(before.body) {
		t.Errorf("the call is answered with %s, before with %s", after, before)
	}
}
