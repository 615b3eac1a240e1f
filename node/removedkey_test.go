package node

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/node/config"
)

// TestEnqueue_KeyOfRemovedJob checks that a job under the key of one that was removed is
// refused with what to do, however it comes.
func TestEnqueue_KeyOfRemovedJob(t *testing.T) {
	n := startSingleNode(t, func(c *config.Config) { c.Server.Port = 0 })
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	const jobs = "/v1/queues/mail/jobs"
	for _, c := range []struct{ name, key, body string }{
		{"text", "order-7", `{"function":"send","id":"order-7"}`},
		{"UUID", "0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f", `{"function":"send","id":"0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f"}`},
		{"unique key", "order-8", `{"function":"send","id":"order-8","unique_key":"u"}`},
		{"debounce key", "order-9", `{"function":"send","id":"order-9","debounce_key":"d","debounce_ms":60000}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var accepted api.EnqueueReply
			send(t, n, "POST", jobs, c.body).decode(t, http.StatusAccepted, &accepted)
			if err := n.viewer.CatchUp(t.Context()); err != nil {
				t.Fatal(err)
			}
			send(t, n, "DELETE", "/v1/jobs/"+accepted.ID.String(), "").decode(t, http.StatusOK, nil)
			for _, path := range []string{jobs, jobs + "?wait=10s", "/v1/queues/mail/call"} {
				wantRemoved(t, send(t, n, "POST", path, c.body), accepted.ID)
			}
			var bulk api.BulkReply
			send(t, n, "POST", "/v1/jobs/bulk", `{"queue":"mail","jobs":[`+c.body+`]}`).decode(t, http.StatusOK, &bulk)
			if e := bulk.Jobs[0].Error; e == nil || e.Code != api.CodeConflict || !strings.HasPrefix(e.Message, job.CodeRemoved+": ") {
				t.Errorf("in bulk: %+v", bulk.Jobs[0])
			}
			_, err := dialAs(t, n, cluster.DialOptions{}).Request(t.Context(), api.Subject("enqueue", "mail"), []byte(c.body))
			if refused, _ := errors.AsType[*api.Error](err); refused == nil || refused.Code != api.CodeConflict || !strings.Contains(string(refused.Data), job.CodeRemoved) {
				t.Errorf("over NATS: %v", err)
			}
			for _, name := range []string{accepted.ID.String(), "mail:" + c.key, c.key} {
				shown := send(t, n, "GET", "/v1/jobs/"+name, "")
				if shown.status != http.StatusNotFound || !strings.Contains(shown.String(), "removed at a caller's request") {
					t.Errorf("%s: %s", name, shown)
				}
			}
		})
	}

	producer := &overhop.Producer{Nodes: []string{n.Addresses().Overhop}}
	t.Cleanup(func() { producer.Close() })
	if _, err := producer.Enqueue(t.Context(), overhop.Enqueue{Queue: "mail", Function: "send", Key: "order-7"}); overhop.ErrorCode(err) != overhop.CodeRemovedJob {
		t.Errorf("over Overhop: %v", err)
	}

	// Without its key, the job is made again: the keys of a removed job are free.
	send(t, n, "POST", jobs, `{"function":"send","unique_key":"u"}`).decode(t, http.StatusAccepted, nil)
}

// wantRemoved checks that a reply is the refusal of a job because of one that was removed.
func wantRemoved(t *testing.T, got httpReply, id job.ID) {
	t.Helper()
	var reply struct {
		Error struct {
			Message string
			Data    struct {
				ID     job.ID
				Reason string
			}
		}
	}
	if got.status != http.StatusConflict || json.Unmarshal(got.body, &reply) != nil ||
		reply.Error.Data.ID != id || reply.Error.Data.Reason != job.CodeRemoved || !strings.Contains(reply.Error.Message, "use another") {
		t.Errorf("%s, want 409 about job %s", got, id)
	}
}
