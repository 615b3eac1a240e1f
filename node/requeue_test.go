package node

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
)

// died enqueues a job, cancels it and gives its dead letter.
func died(t *testing.T, n *Node, queue, spec string) letter {
	t.Helper()
	a, err := enqueue(n, queue, spec, "", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.viewer.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	var dispatches uint32
	n.raft.View(func(l *ledger.Ledger) {
		view, _, _ := l.Find(a.id)
		dispatches = view.Dispatches
	})
	return cancelled(t, n, a.id, dispatches)
}

// cancelled cancels a job and gives the letter of its n-th dispatch.
func cancelled(t *testing.T, n *Node, id job.ID, dispatch uint32) (found letter) {
	t.Helper()
	if _, err := n.commander.do(t.Context(), &ledger.CancelJob{Job: id, Reason: "by hand"}); err != nil {
		t.Fatal(err)
	}
	for found.number == 0 && t.Context().Err() == nil {
		last, err := n.messages.LastLetter(t.Context())
		if err == nil {
			err = n.messages.Letters(t.Context(), "", 0, last, func(m cluster.Tale) bool {
				if l := readLetter(&m); !l.broken && l.job == id && l.n == dispatch {
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

// requeueOnly does what requeue does but for the letter's removal, as if the
// node had died before that.
func requeueOnly(t *testing.T, n *Node, l letter, q letterQuestion) (letterItem, error) {
	t.Helper()
	if err := n.viewer.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := &requeuing{dlq: n.dlq, q: &q}
	return m.letter(t.Context(), &l)
}

func wantItem(t *testing.T, what string, got letterItem, err error, result, id, queue string) {
	t.Helper()
	if err != nil || got.Result != result || got.Job != id || got.Queue != queue {
		t.Errorf("%s: %+v, %v; want %s as %s in %s", what, got, err, result, id, queue)
	}
}

func holds(t *testing.T, n *Node, queue string, waiting int) {
	t.Helper()
	if err := n.viewer.catchUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if q, _ := n.Ledger().Queue(queue); q.Counts[job.Waiting] != waiting {
		t.Errorf("queue %s holds %v by state, want %d waiting", queue, q.Counts, waiting)
	}
}

// A letter that outlives its requeue gives no second life.
func TestRequeue_LetterOutlives(t *testing.T) {
	n := alone(t, nil)
	l := died(t, n, "mail", `{"params":{"i":1}}`)
	own := l.job.String()

	got, err := requeueOnly(t, n, l, letterQuestion{DryRun: true})
	wantItem(t, "a dry run", got, err, letterRetried, own, "mail")
	holds(t, n, "mail", 0)
	got, err = requeueOnly(t, n, l, letterQuestion{})
	wantItem(t, "first", got, err, letterRetried, own, "mail")
	got, err = requeueOnly(t, n, l, letterQuestion{})
	wantItem(t, "again", got, err, letterStale, own, "mail")
	got, err = requeueOnly(t, n, l, letterQuestion{To: "post"})
	wantItem(t, "again, elsewhere", got, err, letterStale, own, "mail")
	holds(t, n, "mail", 1)

	// It has failed again: the first letter does not speak of that.
	second := cancelled(t, n, l.job, 2)
	got, err = requeueOnly(t, n, l, letterQuestion{})
	wantItem(t, "after another failure", got, err, letterStale, own, "mail")

	// Forgotten: a new job, of all who ask at once and afterwards one.
	if _, err := n.commander.do(t.Context(), &ledger.RemoveJob{Job: l.job}); err != nil {
		t.Fatal(err)
	}
	renewed := second.renewed().String()
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			m := &requeuing{dlq: n.dlq, q: &letterQuestion{}}
			got, err := m.letter(t.Context(), &second)
			if err != nil || got.Job != renewed || got.Result != letterEnqueued && got.Result != letterStale {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	all.Wait()
	holds(t, n, "mail", 1)
	got, err = requeueOnly(t, n, second, letterQuestion{To: "post"})
	wantItem(t, "forgotten, elsewhere", got, err, letterStale, renewed, "mail")
	if first := l.renewed().String(); first == renewed {
		t.Errorf("two letters of one job make the same new job %s", first)
	}
}

// The new job does what the old one did, now, and no key holds it back.
func TestRequeue_Renewed(t *testing.T) {
	n := alone(t, nil)
	l := died(t, n, "mail", `{"function":"send","params":{"big":12345678901234567890},"run_at":"2199-01-01T00:00:00Z","priority":7,"unique_key":"k","unique_ttl_ms":3600000}`)
	if _, err := n.commander.do(t.Context(), &ledger.RemoveJob{Job: l.job}); err != nil {
		t.Fatal(err)
	}
	if _, err := enqueue(n, "mail", `{"params":{},"unique_key":"k","run_at":"2199-01-01T00:00:00Z"}`, "", false); err != nil {
		t.Fatal(err)
	}
	got, err := requeueOnly(t, n, l, letterQuestion{KeepAttempts: true})
	wantItem(t, "renewed", got, err, letterEnqueued, l.renewed().String(), "mail")
	holds(t, n, "mail", 1)
	j, err := n.viewer.show(t.Context(), l.renewed())
	if err != nil || j.Function != "send" || string(j.Spec.Params) != `{"big":12345678901234567890}` || j.Priority != 7 || j.MaxAttempts != 5 || j.State != job.Waiting {
		t.Errorf("%+v with %+v, %v", j, j.Spec, err)
	}
}

// A large body that was reclaimed cannot be requeued, and its letter says so
// and stays.
func TestRequeue_BodyGone(t *testing.T) {
	n := alone(t, nil)
	l := died(t, n, "mail", `{"params":{"a":"`+strings.Repeat("x", 2*job.MaxInlineBody)+`"}}`)
	if _, err := n.commander.do(t.Context(), &ledger.RemoveJob{Job: l.job}); err != nil {
		t.Fatal(err)
	}
	if err := n.messages.PurgeBlobs(t.Context(), time.Now().Add(2*time.Hour)); err != nil {
		t.Fatal(err)
	}
	question := fmt.Sprintf(`{"letters":[%d]}`, l.number)
	for range 2 {
		q, err := aboutLetters([]byte(question))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := n.dlq.requeue(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		items := answer.(lettersChanged).Items
		if len(items) != 1 || items[0].Result != letterFailed || !strings.Contains(items[0].Error, "is gone") {
			t.Errorf("%+v", answer)
		}
	}
	holds(t, n, "mail", 0)
}

func TestRequeue_AttemptsLeft(t *testing.T) {
	m := &requeuing{dlq: &dlq{maxAttempts: 5}}
	own := int64(3)
	for _, c := range []struct {
		own  *int64
		had  uint32
		want int64
	}{{nil, 0, 5}, {nil, 2, 3}, {nil, 5, 1}, {nil, 9, 1}, {&own, 1, 2}, {&own, 3, 1}} {
		if got := *m.left(c.own, c.had); got != c.want {
			t.Errorf("%v after %d: %d, want %d", c.own, c.had, got, c.want)
		}
	}
}

func TestLetterQuestion_Fits(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	before, after := at.Add(-time.Second), at.Add(time.Second)
	id := job.ID{1}
	l := letter{number: 7, job: id, DeadLetter: scheduler.DeadLetter{
		Queue: "mail", Function: "send", Reason: "no Route to host", Failed: at,
		Error: &job.Fault{Message: "dial: refused", Type: "smtp", Code: "E7"},
	}}
	for _, c := range []struct {
		name string
		q    letterQuestion
		want bool
	}{
		{"nothing", letterQuestion{}, true},
		{"all of it", letterQuestion{Queue: "mail", Function: "send", Error: "SMTP", FailedBefore: &after, FailedAfter: &before, Jobs: []job.ID{{9}, id}}, true},
		{"another queue", letterQuestion{Queue: "mai"}, false},
		{"another function", letterQuestion{Function: "sen"}, false},
		{"a part of the reason", letterQuestion{Error: "route TO"}, true},
		{"a part of the message", letterQuestion{Error: "refused"}, true},
		{"the code", letterQuestion{Error: "e7"}, true},
		{"a part of the type", letterQuestion{Error: "smt"}, false},
		{"earlier", letterQuestion{FailedBefore: &at}, false},
		{"later", letterQuestion{FailedAfter: &at}, false},
		{"another job", letterQuestion{Jobs: []job.ID{{2}}}, false},
	} {
		if got := c.q.fits(&l); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
	if l.Error = nil; l.failedWith("smtp") || !l.failedWith("host") {
		t.Error("a letter without an error is judged by more than its reason")
	}
}

// What is no letter of a yard is shown, and can only be removed.
func TestReadLetter_Odd(t *testing.T) {
	for name, m := range map[string]cluster.Tale{
		"not JSON":  {ID: "dead/" + job.RequestID(job.ID{1}, 1), Body: []byte("{")},
		"no name":   {Body: []byte(`{"queue":"mail"}`)},
		"bad name":  {ID: "dead/7#1", Body: []byte(`{"queue":"mail"}`)},
		"bad field": {ID: "dead/" + job.RequestID(job.ID{1}, 1), Body: []byte(`{"queue":7}`)},
	} {
		m.Subject, m.Seq = "yard.dlq.post", 3
		l := readLetter(&m)
		if !l.broken || l.number != 3 || l.Queue != "post" || !strings.HasPrefix(l.Reason, "this letter cannot be read: ") {
			t.Errorf("%s: %+v", name, l)
		}
		requeuing := &requeuing{dlq: &dlq{}, q: &letterQuestion{}}
		if item, err := requeuing.letter(t.Context(), &l); err == nil || !strings.Contains(err.Error(), "dlq rm") {
			t.Errorf("%s: %+v, %v", name, item, err)
		}
	}
}
