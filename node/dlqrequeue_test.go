package node

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// failedJob enqueues a job, cancels it and returns its dead letter.
func failedJob(t *testing.T, n *Node, queue, spec string) deadLetter {
	t.Helper()
	a, err := enqueue(n, queue, spec, "", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.viewer.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	var dispatches uint32
	n.raft.View(func(l *ledger.Ledger) {
		view, _, _ := l.Find(a.ID)
		dispatches = view.Dispatches
	})
	return cancelledLetter(t, n, a.ID, dispatches)
}

// cancelledLetter cancels a job and returns the dead letter of its n-th dispatch.
func cancelledLetter(t *testing.T, n *Node, id job.ID, dispatch uint32) (found deadLetter) {
	t.Helper()
	if _, err := n.proposer.Propose(t.Context(), &ledger.CancelJob{Job: id, Reason: "by hand"}); err != nil {
		t.Fatal(err)
	}
	for found.number == 0 && t.Context().Err() == nil {
		last, err := n.cluster.Reader.LastDeadLetter(t.Context())
		if err == nil {
			err = n.cluster.Reader.DeadLetters(t.Context(), "", 0, last, func(m cluster.Batch) bool {
				if l := parseDeadLetter(&m); !l.unreadable && l.job == id && l.n == dispatch {
					found = l
				}
				return found.number == 0
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// requeueOnly requeues without removing the dead letter, as if the node had died in
// between.
func requeueOnly(t *testing.T, n *Node, l deadLetter, q api.DeadLetterRequest) (api.DeadLetterResult, error) {
	t.Helper()
	if err := n.viewer.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := &requeuer{dlq: n.dlq, req: &deadLetterRequest{DeadLetterRequest: q}}
	return m.requeueOne(t.Context(), &l)
}

func wantItem(t *testing.T, what string, got api.DeadLetterResult, err error, result, id, queue string) {
	t.Helper()
	if err != nil || got.Result != result || got.Job != id || got.Queue != queue {
		t.Errorf("%s: %+v, %v; want %s as %s in %s", what, got, err, result, id, queue)
	}
}

func wantWaiting(t *testing.T, n *Node, queue string, waiting int) {
	t.Helper()
	if err := n.viewer.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if q, _ := n.Ledger().Queue(queue); q.Counts[job.Waiting] != waiting {
		t.Errorf("queue %s has %v jobs by state, want %d waiting", queue, q.Counts, waiting)
	}
}

// A dead letter that is requeued again runs its job only once.
func TestRequeue_LetterOutlivesJob(t *testing.T) {
	n := startSingleNode(t, nil)
	l := failedJob(t, n, "mail", `{"params":{"i":1}}`)
	own := l.job.String()

	got, err := requeueOnly(t, n, l, api.DeadLetterRequest{DryRun: true})
	wantItem(t, "a dry run", got, err, api.ResultRetried, own, "mail")
	wantWaiting(t, n, "mail", 0)
	got, err = requeueOnly(t, n, l, api.DeadLetterRequest{})
	wantItem(t, "first", got, err, api.ResultRetried, own, "mail")
	got, err = requeueOnly(t, n, l, api.DeadLetterRequest{})
	wantItem(t, "again", got, err, api.ResultStale, own, "mail")
	got, err = requeueOnly(t, n, l, api.DeadLetterRequest{To: "post"})
	wantItem(t, "again, elsewhere", got, err, api.ResultStale, own, "mail")
	wantWaiting(t, n, "mail", 1)

	// The job has failed again: the first dead letter is about the earlier failure.
	second := cancelledLetter(t, n, l.job, 2)
	got, err = requeueOnly(t, n, l, api.DeadLetterRequest{})
	wantItem(t, "after another failure", got, err, api.ResultStale, own, "mail")

	// The ledger no longer has the job: all requests together create one new job.
	if _, err := n.proposer.Propose(t.Context(), &ledger.RemoveJob{Job: l.job}); err != nil {
		t.Fatal(err)
	}
	renewed := second.requeueID().String()
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			m := &requeuer{dlq: n.dlq, req: &deadLetterRequest{}}
			got, err := m.requeueOne(t.Context(), &second)
			if err != nil || got.Job != renewed || got.Result != api.ResultEnqueued && got.Result != api.ResultStale {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	all.Wait()
	wantWaiting(t, n, "mail", 1)
	got, err = requeueOnly(t, n, second, api.DeadLetterRequest{To: "post"})
	wantItem(t, "forgotten, elsewhere", got, err, api.ResultStale, renewed, "mail")
	if first := l.requeueID().String(); first == renewed {
		t.Errorf("two dead letters of one job result in the same new job %s", first)
	}
}

// The new job has the specification of the old one, without its delay and its guards.
func TestRequeue_ID(t *testing.T) {
	n := startSingleNode(t, nil)
	l := failedJob(t, n, "mail", `{"function":"send","params":{"big":12345678901234567890},"run_at":"2199-01-01T00:00:00Z","priority":7,"unique_key":"k","unique_ttl_ms":3600000}`)
	if _, err := n.proposer.Propose(t.Context(), &ledger.RemoveJob{Job: l.job}); err != nil {
		t.Fatal(err)
	}
	if _, err := enqueue(n, "mail", `{"params":{},"unique_key":"k","run_at":"2199-01-01T00:00:00Z"}`, "", false); err != nil {
		t.Fatal(err)
	}
	got, err := requeueOnly(t, n, l, api.DeadLetterRequest{KeepAttempts: true})
	wantItem(t, "renewed", got, err, api.ResultEnqueued, l.requeueID().String(), "mail")
	wantWaiting(t, n, "mail", 1)
	j, err := n.viewer.Full(t.Context(), l.requeueID())
	if err != nil || j.Function != "send" || string(j.Spec.Params) != `{"big":12345678901234567890}` || j.Priority != 7 || j.MaxAttempts != 5 || j.State != job.Waiting {
		t.Errorf("%+v with %+v, %v", j, j.Spec, err)
	}
}

// A dead letter whose large body has been deleted cannot be requeued and stays in the
// stream.
func TestRequeue_BodyGone(t *testing.T) {
	n := startSingleNode(t, nil)
	l := failedJob(t, n, "mail", `{"params":{"a":"`+strings.Repeat("x", 2*job.MaxInlineBody)+`"}}`)
	if _, err := n.proposer.Propose(t.Context(), &ledger.RemoveJob{Job: l.job}); err != nil {
		t.Fatal(err)
	}
	if err := n.cluster.Admin.PurgeBlobs(t.Context(), time.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	question := fmt.Sprintf(`{"letters":[%d]}`, l.number)
	for range 2 {
		q, err := decodeDeadLetterRequest([]byte(question))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := n.dlq.requeue(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		items := answer.(api.DeadLetterResults).Items
		if len(items) != 1 || items[0].Result != api.ResultFailed || !strings.Contains(items[0].Error, "is gone") {
			t.Errorf("%+v", answer)
		}
	}
	wantWaiting(t, n, "mail", 0)
}

func TestRequeue_AttemptsLeft(t *testing.T) {
	m := &requeuer{dlq: &dlq{maxAttempts: 5}}
	own := int64(3)
	for _, c := range []struct {
		own  *int64
		had  uint32
		want int64
	}{{nil, 0, 5}, {nil, 2, 3}, {nil, 5, 1}, {nil, 9, 1}, {&own, 1, 2}, {&own, 3, 1}} {
		if got := *m.attemptsLeft(c.own, c.had); got != c.want {
			t.Errorf("%v after %d: %d, want %d", c.own, c.had, got, c.want)
		}
	}
}

func TestDeadLetterRequest_Matches(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	before, after := at.Add(-time.Second), at.Add(time.Second)
	id := job.ID{1}
	l := deadLetter{number: 7, job: id, DeadLetterMessage: api.DeadLetterMessage{
		Queue: "mail", Function: "send", Reason: "no Route to host", Failed: at,
		Error: &job.Fault{Message: "dial: refused", Type: "smtp", Code: "E7"},
	}}
	for _, c := range []struct {
		name string
		q    api.DeadLetterRequest
		want bool
	}{
		{"nothing", api.DeadLetterRequest{}, true},
		{"all of it", api.DeadLetterRequest{Queue: "mail", Function: "send", Error: "SMTP", FailedBefore: &after, FailedAfter: &before, Jobs: []job.ID{{9}, id}}, true},
		{"another queue", api.DeadLetterRequest{Queue: "mai"}, false},
		{"another function", api.DeadLetterRequest{Function: "sen"}, false},
		{"a part of the reason", api.DeadLetterRequest{Error: "route TO"}, true},
		{"a part of the message", api.DeadLetterRequest{Error: "refused"}, true},
		{"the code", api.DeadLetterRequest{Error: "e7"}, true},
		{"a part of the type", api.DeadLetterRequest{Error: "smt"}, false},
		{"earlier", api.DeadLetterRequest{FailedBefore: &at}, false},
		{"later", api.DeadLetterRequest{FailedAfter: &at}, false},
		{"another job", api.DeadLetterRequest{Jobs: []job.ID{{2}}}, false},
	} {
		if got := (&deadLetterRequest{DeadLetterRequest: c.q}).matches(&l); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if l.Error = nil; l.failedWith("smtp") || !l.failedWith("host") {
		t.Error("a dead letter without an error must be grouped by its reason")
	}
}

// A message that cannot be decoded is listed and can only be removed.
func TestParseDeadLetter_Unreadable(t *testing.T) {
	for name, m := range map[string]cluster.Batch{
		"not JSON":  {ID: "dead/" + job.RequestID(job.ID{1}, 1), Body: []byte("{")},
		"no name":   {Body: []byte(`{"queue":"mail"}`)},
		"bad name":  {ID: "dead/7#1", Body: []byte(`{"queue":"mail"}`)},
		"bad field": {ID: "dead/" + job.RequestID(job.ID{1}, 1), Body: []byte(`{"queue":7}`)},
	} {
		m.Subject, m.Seq = "yard.dlq.post", 3
		l := parseDeadLetter(&m)
		if !l.unreadable || l.number != 3 || l.Queue != "post" || !strings.HasPrefix(l.Reason, "this letter cannot be read: ") {
			t.Errorf("%s: %+v", name, l)
		}
		requeuing := &requeuer{dlq: &dlq{}, req: &deadLetterRequest{}}
		if item, err := requeuing.requeueOne(t.Context(), &l); err == nil || !strings.Contains(err.Error(), "dlq rm") {
			t.Errorf("%s: %+v, %v", name, item, err)
		}
	}
}
