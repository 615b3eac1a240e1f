package node

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
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

// purge removes the records of a lane below a sequence, as the authority does.
func purge(t *testing.T, n *Node, lane uint8, below uint64) {
	t.Helper()
	var index uint64
	n.raft.View(func(l *ledger.Ledger) { index = l.Index() })
	if _, err := n.proposer.Propose(t.Context(), &ledger.Reclaim{Lane: lane, Below: below, AsOf: index}); err != nil {
		t.Fatal(err)
	}
	if err := n.cluster.Admin.Purge(t.Context(), lane, below); err != nil {
		t.Fatal(err)
	}
}

// purgeRecord purges the lane up to the record of a failed job, and returns the job.
func purgeRecord(t *testing.T, n *Node, id job.ID) (view job.View) {
	t.Helper()
	if _, err := enqueue(n, "other", `{"params":{}}`, "", false); err != nil { // so that the lane does not end with the record
		t.Fatal(err)
	}
	if err := n.viewer.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.raft.View(func(l *ledger.Ledger) { view, _, _ = l.Find(id) })
	purge(t, n, view.Position.Lane, view.Position.Seq+1)
	return view
}

// A retry restores the record of a failed job although an earlier copy of it was purged a
// moment ago, before any job referred to the copy.
func TestWeb_JobRetry_CopyPurged(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	failed := failedJob(t, n, "mail", `{"function":"f","params":{"a":1}}`)
	view := purgeRecord(t, n, failed.job)
	copies, err := n.cluster.Writer.StoreRelocated(t.Context(), 0, []job.Record{
		{Position: view.Position, Queue: "mail", Stored: view.Created, Body: []byte(`{}`), Owner: failed.job},
		{Position: view.Position, Queue: "mail", Stored: view.Created, Body: []byte(`{}`), Owner: job.ID{1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	purge(t, n, job.RelocatedLane, copies[1])

	send(t, n, "POST", "/v1/jobs/"+failed.job.String()+"/retry", "").decode(t, http.StatusOK, nil)
	ran := make(chan string, 1)
	serve(t, n, "mail", func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		ran <- q.JID
		return nil, nil
	})
	if jid := <-ran; jid != "mail:"+failed.job.String() {
		t.Errorf("%s ran", jid)
	}
}

// A retry is refused, with the reason, rather than using the space that is needed to reclaim
// the stream of relocated records.
func TestWeb_JobRetry_RelocatedFull(t *testing.T) {
	n := startSingleNode(t, nil)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	params := strings.Repeat("x", 60<<10)
	failed := failedJob(t, n, "mail", `{"params":{"text":"`+params+`"}}`)
	purgeRecord(t, n, failed.job)
	hold := func(until time.Time) {
		if _, err := n.proposer.Propose(t.Context(), &ledger.Hold{Holder: "test", Until: until}); err != nil {
			t.Fatal(err)
		}
	}
	hold(time.Now().Add(time.Hour)) // no job refers to the copies that fill the stream, so they would be reclaimed
	other := job.Record{Queue: "mail", Body: []byte(params)}
	var copies []uint64
	for i := 1; ; i++ {
		info, err := n.cluster.Reader.LaneInfo(t.Context(), job.RelocatedLane)
		if err != nil {
			t.Fatal(err)
		}
		if info.Bytes+streams.RelocatedSize(&other) > scheduler.RelocatedLimit(uint64(info.MaxBytes)) {
			break
		}
		other.Owner = job.ID{byte(i >> 8), byte(i)}
		seqs, err := n.cluster.Writer.StoreRelocated(t.Context(), 0, []job.Record{other})
		if err != nil {
			t.Fatal(err)
		}
		copies = append(copies, seqs...)
	}
	retry := func() httpReply { return send(t, n, "POST", "/v1/jobs/"+failed.job.String()+"/retry", "") }
	if r := retry(); r.status != http.StatusServiceUnavailable || !strings.Contains(string(r.body), subjects.StreamRelocated) {
		t.Errorf("with a full stream: %s", r)
	}
	hold(time.Time{})
	purge(t, n, job.RelocatedLane, copies[len(copies)-1])
	retry().decode(t, http.StatusOK, nil)
}
