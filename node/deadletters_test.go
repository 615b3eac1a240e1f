package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server"
	"github.com/yardmaster-dev/yardmaster/server/deadletters"
)

// failure is the dead letter of a job's n-th dispatch.
type failure struct {
	api.DeadLetter
	job job.ID
	n   uint32
}

// requeueID returns the id of the job that is created from f.
func (f *failure) requeueID() job.ID {
	id, _ := job.KeyID("", fmt.Sprintf("dead/%s@%d/%d", job.RequestID(f.job, f.n), f.Lane, f.Seq))
	return id
}

// failedJob enqueues a job, cancels it and returns its dead letter.
func failedJob(t *testing.T, n *Node, queue, spec string) failure {
	t.Helper()
	a, err := enqueue(n, queue, spec, "", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.viewer.CatchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	return failedLetter(t, n, a.ID, 0)
}

// failedLetter lets a waiting job fail and returns its first dead letter after another.
func failedLetter(t *testing.T, n *Node, id job.ID, after uint64) failure {
	t.Helper()
	f := failure{job: id}
	n.raft.View(func(l *ledger.Ledger) {
		view, _, _ := l.Find(id)
		f.n = view.Dispatches
	})
	if _, err := n.proposer.Propose(t.Context(), &ledger.CancelJob{Job: id, Type: job.FaultInvalid, Reason: "cannot run"}); err != nil {
		t.Fatal(err)
	}
	var page api.DeadLetterPage
	for len(page.Letters) == 0 {
		if err := request(t, n.apiHandlers(), "dlq-list", api.DeadLetterRequest{Jobs: []job.ID{id}, From: after + 1, Order: api.OrderOldest}, &page); err != nil {
			t.Fatal(err)
		}
	}
	f.DeadLetter = page.Letters[0]
	return f
}

// request calls the handler of an endpoint and decodes its reply.
func request(t *testing.T, handlers map[string]server.Handler, endpoint string, req, reply any) error {
	t.Helper()
	text, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := handlers[endpoint](t.Context(), cluster.NewRequest(text, "", func(string) string { return "" }, nil))
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, reply)
}

// requeueOnly requeues without removing the dead letter, as if the node had died in
// between.
func requeueOnly(t *testing.T, n *Node, l failure, q api.DeadLetterRequest) (api.DeadLetterResult, error) {
	t.Helper()
	died := errors.New("the node died")
	handlers := deadletters.New(deadletters.Config{
		Reader: n.cluster.Reader, Remove: func(context.Context, uint64) error { return died }, View: n.raft.View, Authority: n.proposer,
		Jobs: n.viewer, Retrier: n.retrier, Intake: n.intake, MaxAttempts: n.cfg.Scheduler.MaxAttempts,
	}).Handlers()
	q.Letters = []uint64{l.Number}
	var reply api.DeadLetterResults
	if err := request(t, handlers, "dlq-requeue", q, &reply); err != nil {
		return api.DeadLetterResult{}, err
	}
	item := reply.Items[0]
	if !q.DryRun && !strings.HasSuffix(item.Error, died.Error()) {
		return item, errors.New(item.Error)
	}
	return item, nil
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
	if _, err := n.proposer.Propose(t.Context(), &ledger.AddQueue{ID: job.ID{1}, Name: "post"}); err != nil {
		t.Fatal(err)
	}

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
	second := failedLetter(t, n, l.job, l.Number)
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
			got, err := requeueOnly(t, n, second, api.DeadLetterRequest{})
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
	j, err := n.viewer.Full(t.Context(), l.requeueID(), api.MaxShownBytes)
	if err != nil || j.Function != "send" || string(j.Spec.Params) != `{"big":12345678901234567890}` || j.Priority != 7 || j.MaxAttempts != 5 || j.State != job.Waiting {
		t.Errorf("%+v with %+v, %v", j, j.Spec, err)
	}
}

// A large body is kept as long as a dead letter refers to it, also when the ledger no
// longer has the job. A dead letter whose body is lost cannot be requeued and stays in
// the stream.
func TestRequeue_LargeBody(t *testing.T) {
	n := startSingleNode(t, nil)
	large := strings.Repeat("x", 2*job.MaxInlineBody)
	l := failedJob(t, n, "mail", `{"params":{"a":"`+large+`"}}`)
	if _, err := n.proposer.Propose(t.Context(), &ledger.RemoveJob{Job: l.job}); err != nil {
		t.Fatal(err)
	}
	other, err := enqueue(n, "post", `{"params":{"a":"`+large+`"}}`, "", false)
	if err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the other job is removed", func() bool {
		_, err := n.proposer.Propose(t.Context(), &ledger.RemoveJob{Job: other.ID})
		return err == nil
	})
	bodies := func() []streams.Body {
		t.Helper()
		bodies, err := n.cluster.Admin.Bodies(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return bodies
	}
	waitUntil(t, "the body of the removed job is freed", func() bool { return len(bodies()) == 1 })
	got, err := requeueOnly(t, n, l, api.DeadLetterRequest{DryRun: true})
	wantItem(t, "with its body", got, err, api.ResultEnqueued, l.requeueID().String(), "mail")

	if err := n.cluster.Admin.RemoveBody(t.Context(), bodies()[0].Name); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var reply api.DeadLetterResults
		if err := request(t, n.apiHandlers(), "dlq-requeue", api.DeadLetterRequest{Letters: []uint64{l.Number}}, &reply); err != nil {
			t.Fatal(err)
		}
		if items := reply.Items; len(items) != 1 || items[0].Result != api.ResultFailed || !strings.Contains(items[0].Error, "is gone") {
			t.Errorf("%+v", reply)
		}
	}
	wantWaiting(t, n, "mail", 0)
}
