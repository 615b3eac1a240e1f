package node

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/intake"
)

// Of concurrent callers with the same unique key exactly one creates a job. All others get
// its id.
func TestIntake_UniqueKey(t *testing.T) {
	n := startSingleNode(t, nil)
	const callers = 20
	answers := make([]intake.Ack, callers)
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
		if err == nil && made.IsZero() && !answers[i].Duplicate {
			made = answers[i].ID
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
	if err != nil || named.Duplicate {
		t.Fatalf("%+v, %v", named, err)
	}
	if again, err := enqueue(n, "mail", `{"params":{},"unique_key":"named"}`, "order-1", false); err != nil || again.ID != named.ID || !again.Duplicate {
		t.Errorf("the holder repeated: %+v, %v", again, err)
	}
	if _, err := n.proposer.Propose(t.Context(), &ledger.RemoveJob{Job: made}); err != nil {
		t.Fatal(err)
	}
	if a, err := enqueue(n, "mail", `{"params":{},"unique_key":"k"}`, "", false); err != nil || a.Duplicate {
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
	if err != nil || first.Debounced {
		t.Fatalf("%+v, %v", first, err)
	}
	second, err := enqueue(n, "mail", debounced(2), "", false)
	if err != nil || !second.Debounced || second.ID != first.ID {
		t.Fatalf("%+v, %v", second, err)
	}
	view, err := n.viewer.Full(t.Context(), first.ID, api.MaxShownBytes)
	if err != nil || view.Spec == nil || string(view.Spec.Params) != `{"i":2}` || view.State != job.Delayed {
		t.Errorf("the debounced job is %+v, %v", view, err)
	}
	var refused *api.Error
	if _, err := enqueue(n, "post", debounced(3), "", false); !errors.As(err, &refused) || refused.Code != api.CodeConflict {
		t.Errorf("debounce key held by a job of another queue: %v", err)
	}
}

// TestIntake_Repeated checks that a repeated enqueue that made no job of its own is answered with
// the job that the first answer named, and changes nothing, also once that job has ended, and that
// it is refused once the job was removed.
func TestIntake_Repeated(t *testing.T) {
	n := startSingleNode(t, nil)
	send := func(key string, i int, guards string) (intake.Ack, error) {
		return enqueue(n, "mail", fmt.Sprintf(`{"params":{"i":%d},%s}`, i, guards), key, false)
	}
	const debounce, unique = `"debounce_key":"d","debounce_ms":3600000`, `"unique_key":"u","unique_until":"end"`
	first, err := send("m1", 1, debounce)
	if err != nil {
		t.Fatal(err)
	}
	for i, key := range []string{"m2", "6f1d0c52-8e0b-4a3e-9c41-7a72646d7374", "m4"} {
		if a, err := send(key, i+2, debounce); err != nil || a.ID != first.ID || !a.Debounced || a.Duplicate {
			t.Fatalf("%s: %+v, %v", key, a, err)
		}
	}
	holder, err := send("u1", 1, unique)
	if err != nil {
		t.Fatal(err)
	}
	var held *job.DuplicateError
	if _, err := send("u2", 2, unique); !errors.As(err, &held) || held.ID != holder.ID {
		t.Fatalf("a second job with a unique key: %v", err)
	}
	repeat := func(when string) {
		t.Helper()
		for _, key := range []string{"m2", "6f1d0c52-8e0b-4a3e-9c41-7a72646d7374", "m4"} {
			for _, guards := range []string{debounce, `"priority":3`} {
				if a, err := send(key, 2, guards); err != nil || a.ID != first.ID || !a.Duplicate || !a.Debounced {
					t.Errorf("%s, %s with %s: %+v, %v", when, key, guards, a, err)
				}
			}
		}
		if _, err := send("u2", 2, unique); !errors.As(err, &held) || held.ID != holder.ID || held.Queue != "mail" {
			t.Errorf("%s, a repeated job with a unique key: %v", when, err)
		}
	}
	repeat("while the jobs wait")
	view, err := n.viewer.Full(t.Context(), first.ID, api.MaxShownBytes)
	if err != nil || view.Spec == nil || string(view.Spec.Params) != `{"i":4}` {
		t.Errorf("the job has the params of %+v, %v", view.Spec, err)
	}
	_, err = enqueue(n, "post", `{"params":{}}`, "6f1d0c52-8e0b-4a3e-9c41-7a72646d7374", false)
	if refused, ok := errors.AsType[*api.Error](err); !ok || refused.Code != api.CodeConflict {
		t.Errorf("the id of a merged record, in another queue: %v", err)
	}
	change := func(c func(job.ID) ledger.Command) {
		t.Helper()
		for _, id := range []job.ID{first.ID, holder.ID} {
			if _, err := n.proposer.Propose(t.Context(), c(id)); err != nil {
				t.Fatal(err)
			}
		}
	}
	change(func(id job.ID) ledger.Command { return &ledger.CancelJob{Job: id, Reason: "test"} })
	repeat("when the jobs have ended")
	change(func(id job.ID) ledger.Command { return &ledger.RemoveJob{Job: id} })
	for key, id := range map[string]job.ID{"m2": first.ID, "u2": holder.ID} {
		guards := map[byte]string{'m': debounce, 'u': unique}[key[0]]
		_, err := send(key, 2, guards)
		if removed, ok := errors.AsType[*job.RemovedError](err); !ok || removed.ID != id || removed.Queue != "mail" {
			t.Errorf("%s repeated when its job is removed: %v", key, err)
		}
	}
	own, _ := job.KeyID("mail", "m2")
	if _, err := n.viewer.Full(t.Context(), own, api.MaxShownBytes); err == nil || !strings.Contains(err.Error(), "it was merged into job "+first.ID.String()) {
		t.Errorf("the job of a merged record: %v", err)
	}
}
