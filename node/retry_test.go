package node

import (
	"net/http"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// A retried job waits like one that was enqueued now: it is due, and nothing shows its
// earlier end, whether it was cancelled or has failed.
func TestWeb_JobRetry(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	send(t, n, "PUT", "/v1/queues/mail", "").decode(t, http.StatusOK, nil)
	send(t, n, "POST", "/v1/queues/mail/pause", "").decode(t, http.StatusOK, nil)
	show := func(key string) (j api.Job) {
		t.Helper()
		send(t, n, "GET", "/v1/jobs/mail:"+key, "").decode(t, http.StatusOK, &j)
		return j
	}
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"id":"tomorrow","params":{},"delay_ms":86400000}`).decode(t, http.StatusAccepted, nil)
	send(t, n, "POST", "/v1/queues/mail/jobs", `{"id":"broken","params":{}}`).decode(t, http.StatusAccepted, nil)
	send(t, n, "POST", "/v1/jobs/mail:tomorrow/cancel", `{"reason":"a mistake"}`).decode(t, http.StatusOK, nil)
	failedLetter(t, n, show("broken").ID, 0)
	if j := show("tomorrow"); j.State != "cancelled" || j.Cancellation == nil || !j.RunAt.After(time.Now()) {
		t.Errorf("cancelled: %+v", j)
	}
	for _, key := range []string{"tomorrow", "broken"} {
		before := time.Now().Add(-time.Second) // the ledger's time may be a little behind
		send(t, n, "POST", "/v1/jobs/mail:"+key+"/retry", "").decode(t, http.StatusOK, nil)
		j := show(key)
		if j.State != "waiting" || j.Reason != "" || j.Error != nil || j.Cancellation != nil || j.Ended != nil || j.Node != "" {
			t.Errorf("%s after the retry: %+v", key, j)
		}
		if j.RunAt.Before(before) || j.RunAt.After(time.Now()) {
			t.Errorf("%s is to run at %s, want the time of the retry", key, j.RunAt)
		}
	}
}
