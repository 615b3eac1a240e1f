package node

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
)

// list is a bulk of n jobs.
func list(queue string, n int, text string) string {
	one := fmt.Sprintf(`{"function":"send","params":{"text":%q}}`, text)
	return fmt.Sprintf(`{"queue":%q,"jobs":[%s]}`, queue, strings.Repeat(one+",", n-1)+one)
}

// A list of jobs under a key is the same jobs, however often it is sent.
func TestBulk_Key(t *testing.T) {
	n := alone(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	const named = `{"queue":"mail","jobs":[{"function":"a"},{"function":"b","id":"mine"},{"function":"c"}]}`
	var first, second, other bulkReply
	send(t, n, "POST", "/v1/jobs/bulk", named, "Idempotency-Key: list-1").into(t, http.StatusOK, &first)
	send(t, n, "POST", "/v1/jobs/bulk", named, "Idempotency-Key: list-1").into(t, http.StatusOK, &second)
	send(t, n, "POST", "/v1/jobs/bulk", named, "Idempotency-Key: list-2").into(t, http.StatusOK, &other)
	for i, key := range []string{"list-1#0", "mine", "list-1#2"} {
		id, err := job.KeyID("mail", key)
		if err != nil {
			t.Fatal(err)
		}
		if *first.Jobs[i].ID != id || *second.Jobs[i].ID != id || (*other.Jobs[i].ID == id) != (key == "mine") {
			t.Errorf("job %d is %s, %s, and %s of another list; want %s", i, first.Jobs[i].ID, second.Jobs[i].ID, other.Jobs[i].ID, id)
		}
	}
}

// More jobs than there are places, for large bodies and for queues that this
// node does not know, wait for places.
func TestBulk_Patient(t *testing.T) {
	n := alone(t, func(c *Config) { no := false; c.Scheduler.CreateQueues = &no })
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(t, n, "PUT", "/v1/queues/mail", `{}`).into(t, http.StatusOK, nil)
	var got bulkReply
	send(t, n, "POST", "/v1/jobs/bulk", list("mail", 4*maxLarge, strings.Repeat("x", job.MaxInlineBody))).into(t, http.StatusOK, &got)
	if got.Refused != 0 {
		t.Errorf("%d of %d large jobs are refused: %+v", got.Refused, len(got.Jobs), got.Jobs[len(got.Jobs)-1].Error)
	}
	got = bulkReply{}
	send(t, n, "POST", "/v1/jobs/bulk", list("nothing", 3*maxDoubts, "")).into(t, http.StatusOK, &got)
	for i, item := range got.Jobs {
		if item.Error == nil || item.Error.Code != "404" {
			t.Fatalf("job %d for a queue that does not exist: %+v with %+v, want 404", i, item, item.Error)
		}
	}
}

// What is said of refused jobs fits a message, whatever was in them.
func TestBulk_Texts(t *testing.T) {
	n := alone(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	said := send(t, n, "POST", "/v1/jobs/bulk", list("mail", maxBulk, ""), "Yard-Delay: "+strings.Repeat(`"`, 4<<10))
	var got bulkReply
	said.into(t, http.StatusOK, &got)
	if got.Refused != maxBulk || got.Jobs[0].Error.Code != "400" || !strings.Contains(got.Jobs[0].Error.Text, "Yard-Delay") {
		t.Errorf("%d refused, the first with %+v", got.Refused, got.Jobs[0].Error)
	}
	if len(said.body) >= 1<<20 {
		t.Errorf("the answer has %d bytes", len(said.body))
	}
}

// Who waits too short for a job that was accepted learns which it is.
func TestWeb_WaitedTooShort(t *testing.T) {
	n := alone(t, nil)
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
		send(t, n, "POST", path, body).into(t, http.StatusRequestTimeout, &said)
		if said.Error.Code != "408" {
			t.Errorf("%s: %+v", path, said)
		}
		var shown jobJSON
		send(t, n, "GET", "/v1/jobs/"+said.Error.Data.ID.String(), "").into(t, http.StatusOK, &shown)
		if shown.State != job.Waiting.String() {
			t.Errorf("%s: the job is %s", path, shown.State)
		}
	}
}

// Who waits lets go of what it brought first.
func TestCall_Forgets(t *testing.T) {
	n := alone(t, nil)
	waits := map[string]func(context.Context, *cluster.Request) (any, error){
		"called": n.handleCall,
		"waited": func(ctx context.Context, r *cluster.Request) (any, error) {
			return n.enqueueAndShow(ctx, r, time.Minute)
		},
	}
	for key, wait := range waits {
		r := cluster.NewRequest(fmt.Appendf(nil, `{"function":"send","id":%q}`, key), "mail", func(string) string { return "" }, nil)
		freed, ended := make(chan bool, 1), make(chan error, 1)
		r.Free = func() { freed <- r.Data == nil }
		go func() {
			_, err := wait(t.Context(), r)
			ended <- err
		}()
		select {
		case gone := <-freed:
			if !gone {
				t.Errorf("%s: the memory is given back and still used", key)
			}
		case err := <-ended:
			t.Fatalf("%s: ended with %v before its job", key, err)
		}
		id, err := job.KeyID("mail", key)
		if err != nil {
			t.Fatal(err)
		}
		until(t, "the job is there", func() bool {
			_, err := n.commander.do(t.Context(), &ledger.CancelJob{Job: id})
			return err == nil
		})
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// A call that is repeated when the yard has forgotten its job makes no second
// one, and is not told that there was none.
func TestCall_Forgotten(t *testing.T) {
	n := alone(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var first enqueueReply
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"function":"send","id":"old"}`).into(t, http.StatusAccepted, &first)
	path := "/v1/jobs/" + first.ID.String()
	send(t, n, "GET", path, "").into(t, http.StatusOK, nil)
	send(t, n, "POST", path+"/cancel", "").into(t, http.StatusOK, nil)
	send(t, n, "DELETE", path, "").into(t, http.StatusOK, nil)
	if said := send(t, n, "POST", "/v1/queues/mail/call", `{"function":"send","id":"old"}`); said.status != http.StatusGone || !strings.Contains(string(said.body), first.ID.String()) {
		t.Errorf("%s, want 410", said)
	}
}
