package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Of concurrent callers with the same unique key exactly one creates a job. All others get
// its id.
func TestIntake_UniqueKey(t *testing.T) {
	n := startSingleNode(t, nil)
	const callers = 20
	answers := make([]accepted, callers)
	errs := make([]error, callers)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			answers[i], errs[i] = enqueue(n, "mail", fmt.Sprintf(`{"params":{"i":%d},"unique_key":"k"}`, i), "", false)
		})
	}
	all.Wait()
	var made job.ID
	for i, err := range errs {
		if err == nil && made.IsZero() && !answers[i].duplicate {
			made = answers[i].id
		} else if err == nil {
			t.Errorf("caller %d made a second job: %+v", i, answers[i])
		}
	}
	duplicateOf := func(name string, err error) {
		var other *job.DuplicateError
		if !errors.As(err, &other) || other.ID != made || other.Queue != "mail" {
			t.Errorf("%s: %v, want a duplicate of %s", name, err, made)
		}
	}
	for i, err := range errs {
		if err != nil {
			duplicateOf(fmt.Sprint("caller ", i), err)
		}
	}
	_, err := enqueue(n, "post", `{"params":{"x":"`+strings.Repeat("x", 2*job.MaxInlineBody)+`"},"unique_key":"k"}`, "", false)
	duplicateOf("a large body", err)
	if q, _ := n.Ledger().Queue("post"); q.Name != "" {
		t.Error("a rejected duplicate has created its queue")
	}
	// Repeating the holder itself is an ordinary duplicate.
	named, err := enqueue(n, "mail", `{"params":{},"unique_key":"named"}`, "order-1", false)
	if err != nil || named.duplicate {
		t.Fatalf("%+v, %v", named, err)
	}
	if again, err := enqueue(n, "mail", `{"params":{},"unique_key":"named"}`, "order-1", false); err != nil || again.id != named.id || !again.duplicate {
		t.Errorf("the holder repeated: %+v, %v", again, err)
	}
	if _, err := n.proposer.propose(t.Context(), &ledger.RemoveJob{Job: made}); err != nil {
		t.Fatal(err)
	}
	if a, err := enqueue(n, "mail", `{"params":{},"unique_key":"k"}`, "", false); err != nil || a.duplicate {
		t.Errorf("after the holder is removed: %+v, %v", a, err)
	}
}

func TestIntake_RateLimitAndDebounce(t *testing.T) {
	n := startSingleNode(t, nil)
	const limited = `{"params":{},"rate_limit_key":"r","rate_limit_ms":3600000}`
	if _, err := enqueue(n, "mail", limited, "", false); err != nil {
		t.Fatal(err)
	}
	_, err := enqueue(n, "post", limited, "named", false)
	var held *job.RateLimitedError
	if !errors.As(err, &held) || held.RetryAfter <= 0 || held.RetryAfter > time.Hour {
		t.Errorf("a second job within the limit: %v", err)
	}
	id, _ := job.KeyID("post", "named")
	n.raft.View(func(l *ledger.Ledger) {
		if _, known := l.Known(id); known {
			t.Error("the rejected job exists")
		}
	})

	debounced := func(i int) string {
		return fmt.Sprintf(`{"params":{"i":%d},"debounce_key":"d","debounce_ms":3600000}`, i)
	}
	first, err := enqueue(n, "mail", debounced(1), "", false)
	if err != nil || first.debounced {
		t.Fatalf("%+v, %v", first, err)
	}
	second, err := enqueue(n, "mail", debounced(2), "", false)
	if err != nil || !second.debounced || second.id != first.id {
		t.Fatalf("%+v, %v", second, err)
	}
	view, err := n.viewer.full(t.Context(), first.id)
	if err != nil || view.Spec == nil || string(view.Spec.Params) != `{"i":2}` || view.State != job.Delayed {
		t.Errorf("the debounced job is %+v, %v", view, err)
	}
	var refused *cluster.APIError
	if _, err := enqueue(n, "post", debounced(3), "", false); !errors.As(err, &refused) || refused.Code != "409" {
		t.Errorf("debounce key held by a job of another queue: %v", err)
	}
}

// fakeLedger is a ledger whose lane 0 tests ingest step by step.
type fakeLedger struct {
	mu      sync.Mutex
	ledger  *ledger.Ledger
	changed chan struct{}
	stamp   ledger.Stamp
}

func newFakeLedger() *fakeLedger {
	f := &fakeLedger{ledger: ledger.New(), changed: make(chan struct{}), stamp: ledger.Stamp{Index: 1, Term: 1, At: time.Now()}}
	f.ledger.Apply(f.stamp, []ledger.Command{&ledger.Lead{Owner: "n1", Until: time.Now().Add(time.Hour)}})
	f.stamp.Epoch = f.ledger.Authority().Epoch
	f.apply(&ledger.Bootstrap{Lanes: []string{"L0"}})
	return f
}

func (f *fakeLedger) apply(c ledger.Command) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stamp.Index++
	f.ledger.Apply(f.stamp, []ledger.Command{c})
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeLedger) View(fn func(*ledger.Ledger)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(f.ledger)
}

func (f *fakeLedger) Applied() (uint64, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stamp.Index, f.changed
}

// Every caller gets an answer: if the record is not ingested in time, if the decision is no
// longer known, and if the node stops.
func TestDecisions_Timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeLedger()
		d := newDecisions(f, 5*time.Second)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- d.run(ctx) }()
		ask := func(seq uint64) <-chan error {
			answered := make(chan error, 1)
			d.await(job.Position{Seq: seq}, func(got ledger.Decision, err error) {
				if err == nil && got.Ingested != ledger.IngestedWaiting {
					err = fmt.Errorf("decision %+v", got)
				}
				answered <- err
			})
			return answered
		}
		undecided := func(name string, err error) {
			t.Helper()
			var away *job.UnavailableError
			if !errors.As(err, &away) || away.RetryAfter <= 0 || !strings.Contains(err.Error(), "ask again under the same keys") {
				t.Errorf("%s: %v", name, err)
			}
		}
		began := time.Now()
		undecided("not ingested", <-ask(1))
		if waited := time.Since(began); waited != 5*time.Second {
			t.Errorf("waited %s", waited)
		}
		guards := &job.Guards{Unique: job.Guard{Key: job.GuardKey{1}, TTL: time.Hour}}
		decided, later := ask(2), ask(3)
		synctest.Wait()
		f.apply(&ledger.Ingest{Identity: "L0", From: 0, To: 2, CreateQueues: true, Jobs: []job.Job{
			{ID: job.ID{1}, Queue: "mail", Position: job.Position{Seq: 1}},
			{ID: job.ID{2}, Queue: "mail", Position: job.Position{Seq: 2}, Guards: guards},
		}})
		if err := <-decided; err != nil {
			t.Errorf("the decision: %v", err)
		}
		if err := <-ask(2); err != nil {
			t.Errorf("asked again: %v", err)
		}
		began = time.Now()
		undecided("decision forgotten", <-ask(1))
		if time.Since(began) != 0 {
			t.Errorf("it took %s to report that no decision is known", time.Since(began))
		}
		stop()
		undecided("the node stops", <-later)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		undecided("after the stop", <-ask(2))
	})
}

// A job that its lane drops as a repetition of a rejected one is not answered with the
// earlier rejection, whose reason may have passed.
func TestIntake_RetryAfterRejection(t *testing.T) {
	n := startSingleNode(t, nil)
	const unique = `{"params":{},"unique_key":"u"}`
	holder, err := enqueue(n, "mail", unique, "", false)
	if err != nil {
		t.Fatal(err)
	}
	stored, known := make(chan accepted, 1), job.Position{}
	var other *job.DuplicateError
	if _, err := enqueue(n, "mail", unique, "named", false); !errors.As(err, &other) || other.ID != holder.id {
		t.Fatalf("with a held unique key: %v", err)
	}
	id, _ := job.KeyID("mail", "named")
	n.raft.View(func(l *ledger.Ledger) { known.Seq = l.Lanes()[0].Cursor })
	decided := n.intake.whenDecided(id, true, func(a accepted, err error) {
		var away *job.UnavailableError
		if !errors.As(err, &away) || away.RetryAfter != staleDecisionDelay {
			t.Errorf("repeated at once: %+v, %v", a, err)
		}
		stored <- a
	})
	decided(accepted{id: id, position: known, duplicate: true}, nil) // as the lane answers for a repeated key
	<-stored
}

// slowReader is a ledger that calls during while it is being read.
type slowReader struct {
	*fakeLedger
	during func()
}

func (s *slowReader) View(fn func(*ledger.Ledger)) {
	s.fakeLedger.View(func(l *ledger.Ledger) {
		fn(l)
		s.during()
	})
}

// A caller can be added while answerReady reads the ledger, and is not lost.
func TestDecisions_WaiterAddedDuringCheck(t *testing.T) {
	s := &slowReader{fakeLedger: newFakeLedger()}
	r := newDecisions(s, time.Hour)
	ignore := func(ledger.Decision, error) {}
	s.during = func() {
		asked := make(chan struct{})
		go func() {
			r.await(job.Position{Seq: 2}, ignore)
			close(asked)
		}()
		select {
		case <-asked:
		case <-time.After(5 * time.Second):
			t.Error("await blocks while the ledger is being read")
		}
	}
	r.await(job.Position{Seq: 1}, ignore)
	if _, some := r.answerReady(time.Now()); !some || len(r.waiters) != 2 {
		t.Errorf("waiting: %d", len(r.waiters))
	}
}
