package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// getList requests a page of jobs.
func getList(t *testing.T, n *Node, query string) (list api.JobList) {
	t.Helper()
	send(t, n, "GET", "/v1/jobs?"+query, "").decode(t, http.StatusOK, &list)
	return list
}

// ids returns the ids of listed jobs.
func ids(list *api.JobList) (ids []job.ID) {
	for i := range list.Jobs {
		ids = append(ids, list.Jobs[i].ID)
	}
	return ids
}

// TestJobList_Keys checks that a list shows the key of a job, whichever way it came and
// wherever its record is, and as much of its params as it should.
func TestJobList_Keys(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	const uuid = "0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f"
	odd := "a \"b\" <c>\n\x00 ü 🚂 " + strings.Repeat("k", 90)
	body := func(id, text string) string {
		b, _ := json.Marshal(map[string]any{"id": id, "function": "send", "params": map[string]string{"text": text}})
		return string(b)
	}
	post := func(body string, head ...string) {
		send(t, n, "POST", "/v1/queues/mail/jobs", body, head...).decode(t, http.StatusAccepted, nil)
	}
	post(body("order-1", "short"))
	post(`{"function":"send"}`, "Idempotency-Key: order-2")
	post(body(uuid, "short"))
	post(`{"function":"send","params":{"key":"mine"}}`)
	post(body(odd, "short"))
	post(body("medium", strings.Repeat("ü", 1000)))
	post(body("large", strings.Repeat("x", 200<<10)))
	send(t, n, "POST", "/v1/jobs/bulk", `{"queue":"mail","jobs":[{"function":"send","id":"in-bulk"},{"function":"send"}]}`, "Idempotency-Key: all").decode(t, http.StatusOK, nil)
	nc, err := nats.Connect(n.Addresses().NATS)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	direct := nats.NewMsg("yard.jobs.mail")
	direct.Header.Set("Nats-Msg-Id", "published")
	direct.Data = []byte(`{"function":"send","params":{"to":"ann"}}`)
	if ack, err := nc.RequestMsg(direct, 10*time.Second); err != nil || strings.Contains(string(ack.Data), "error") {
		t.Fatal(ack, err)
	}
	if err := n.viewer.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}

	check := func() {
		t.Helper()
		list := getList(t, n, "queues=mail")
		keys := map[string]api.Job{}
		for _, j := range list.Jobs {
			keys[j.Key] = j
			var shown api.Job
			send(t, n, "GET", "/v1/jobs/"+j.ID.String(), "").decode(t, http.StatusOK, &shown)
			if shown.Key != j.Key || j.PayloadGone || j.PayloadUnread != "" {
				t.Errorf("listed with key %q, shown with %q; gone %t, unread %q", j.Key, shown.Key, j.PayloadGone, j.PayloadUnread)
			}
		}
		for _, key := range []string{"order-1", "order-2", odd, "medium", "large", "in-bulk", "all#1", "published", ""} {
			if _, ok := keys[key]; !ok {
				t.Errorf("no job is listed with the key %q", key)
			}
		}
		if len(list.Jobs) != 10 || list.Next != "" || list.Totals["waiting"]+list.Totals["failed"] != 10 {
			t.Errorf("%d jobs, totals %v, next %q", len(list.Jobs), list.Totals, list.Next)
		}
		if j := keys["order-1"]; string(j.Params) != `{"text":"short"}` || j.ParamsStart != "" || j.PayloadBytes != 0 {
			t.Errorf("short params: %+v", j)
		}
		if j := keys["medium"]; j.Params != nil || !strings.HasPrefix(j.ParamsStart, `{"text":"üü`) || len(j.ParamsStart) > api.MaxListedBytes || j.PayloadBytes != len(`{"text":""}`)+2000 {
			t.Errorf("medium params: %+v", j)
		}
		if j := keys["large"]; j.Params != nil || j.ParamsStart != "" || j.PayloadBytes < 200<<10 {
			t.Errorf("large params: %+v", j)
		}
	}
	check()

	// The key is in the dead letter, too, and no retry loses it.
	send(t, n, "PUT", "/v1/queues/mail", "{}")
	serve(t, n, "mail", func(context.Context, *overhop.Quest) (overhop.Raw, error) {
		return nil, &overhop.FailError{Message: "no", Final: true}
	})
	var letters api.DeadLetterPage
	for len(letters.Letters) < 10 {
		send(t, n, "GET", "/v1/dlq?queue=mail", "").decode(t, http.StatusOK, &letters)
	}
	check()
	list := getList(t, n, "queues=mail&brief=true")
	for _, j := range list.Jobs {
		if j.Key != "" || j.Params != nil || j.State != "failed" {
			t.Errorf("brief: %+v", j)
		}
	}
}

// TestJobList_Pages checks that pages continue each other while jobs change their state,
// over HTTP and NATS, and the filters.
func TestJobList_Pages(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var accepted []job.ID
	for i := range 30 {
		spec := fmt.Sprintf(`{"function":"f%d"}`, i%2)
		if i%5 == 0 {
			spec = `{"function":"f0","delay_ms":3600000}`
		}
		a, err := enqueue(n, fmt.Sprint("q", i%3), spec, "", false)
		if err != nil {
			t.Fatal(err)
		}
		accepted = append(accepted, a.ID)
	}
	if err := n.viewer.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	newest := slices.Clone(accepted)
	slices.Reverse(newest)

	var got []job.ID
	query := "limit=7"
	for pages := 0; ; pages++ {
		list := getList(t, n, query)
		got = append(got, ids(&list)...)
		if list.Next == "" {
			break
		}
		query = "limit=7&after=" + list.Next
		for _, id := range []job.ID{accepted[pages], accepted[29-pages]} { // on both sides of the cursor
			send(t, n, "POST", "/v1/jobs/"+id.String()+"/cancel", "").decode(t, http.StatusOK, nil)
		}
	}
	if !slices.Equal(got, newest) {
		t.Errorf("pages have %v, want %v", got, newest)
	}
	if list := getList(t, n, "order=oldest&limit=1000"); !slices.Equal(ids(&list), accepted) || list.Totals["cancelled"] != 8 {
		t.Errorf("oldest first: %v, want %v; totals %v", ids(&list), accepted, list.Totals)
	}
	first := getList(t, n, "limit=1")
	send(t, n, "GET", "/v1/jobs?order=oldest&after="+first.Next, "").decode(t, http.StatusBadRequest, nil)

	var list api.JobList
	client := dialAs(t, n, cluster.DialOptions{})
	text, err := client.Request(t.Context(), api.Subject("job-list"), []byte(`{"queues":["q0","q1"],"states":["delayed","cancelled"],"function":"f0"}`))
	if err == nil {
		err = json.Unmarshal(text, &list)
	}
	if err != nil || len(list.Jobs) == 0 {
		t.Fatal(err, len(list.Jobs))
	}
	for _, j := range list.Jobs {
		if j.Queue == "q2" || j.State == "waiting" || j.Function != "f0" {
			t.Errorf("not selected: %+v", j)
		}
	}
	total := 0
	for _, n := range list.Totals {
		total += n
	}
	if total != 20 {
		t.Errorf("totals of two queues: %v", list.Totals)
	}
}
