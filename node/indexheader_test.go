package node

import (
	"net/http"
	"strconv"
	"testing"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// A reply that shows the ledger carries no later index and event than it shows, and the reply to
// a change carries the index of the change.
func TestIndexHeader(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	now := func() (index, event uint64) {
		n.raft.View(func(l *ledger.Ledger) { index, event = l.Index(), l.LastEvent() })
		return index, event
	}
	const id = "0190c3d2-5b1e-7cc0-98c4-dc0c0c07398f"
	for _, c := range []struct {
		method, path, body string
		changes            bool
	}{
		{"PUT", "/v1/queues/mail", `{}`, true},
		{"POST", "/v1/queues/mail/pause", "", true},
		{"POST", "/v1/queues/mail/jobs", `{"id":"` + id + `","function":"f"}`, false},
		{"PUT", "/v1/cron/daily", `{"schedule":"0 0 3 * * *","queue":"mail","job":{"function":"f"}}`, true},
		{"GET", "/v1/jobs/" + id, "", false},
		{"GET", "/v1/jobs/" + id + "/explain", "", false},
		{"GET", "/v1/jobs?states=waiting", "", false},
		{"GET", "/v1/queues", "", false},
		{"GET", "/v1/queues/mail", "", false},
		{"GET", "/v1/queues/mail/explain", "", false},
		{"GET", "/v1/cron", "", false},
		{"GET", "/v1/cron/daily", "", false},
		{"GET", "/v1/status", "", false},
		{"GET", "/v1/snapshot", "", false},
		{"GET", "/v1/ledger/hash", "", false},
		{"POST", "/v1/jobs/" + id + "/cancel", "", true},
		{"GET", "/v1/jobs/" + id + "/wait", "", false},
		{"DELETE", "/v1/jobs/" + id, "", true},
	} {
		before, eventBefore := now()
		got := send(t, n, c.method, c.path, c.body)
		index, err := strconv.ParseUint(got.header.Get("Yard-Index"), 10, 64)
		if c.path == "/v1/queues/mail/jobs" { // enqueued to the lane, not yet in the ledger
			if got.status != 202 || err == nil {
				t.Errorf("%s: %s, index %d", c.path, got, index)
			}
			continue
		}
		if got.status != 200 || err != nil {
			t.Errorf("%s %s: %s, %v", c.method, c.path, got, err)
		}
		after, eventAfter := now()
		if index < before || index > after || c.changes && index == before {
			t.Errorf("%s %s shows index %d; it was %d before and is %d after", c.method, c.path, index, before, after)
		}
		event, err := strconv.ParseUint(got.header.Get("Yard-Event"), 10, 64)
		if err != nil || event < eventBefore || event > eventAfter {
			t.Errorf("%s %s shows event %d; it was %d before and is %d after: %v", c.method, c.path, event, eventBefore, eventAfter, err)
		}
	}
}
