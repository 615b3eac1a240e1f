package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/yardmaster-dev/yardmaster/client"
)

// enqueuer records the keys of the jobs that are sent together, and answers as answer does.
type enqueuer struct {
	batches [][]string
	answer  func(key string) error
}

func (e *enqueuer) EnqueueMany(_ context.Context, specs []client.Spec) []client.Enqueued {
	var keys []string
	answers := make([]client.Enqueued, len(specs))
	for i, s := range specs {
		keys, answers[i].Err = append(keys, s.Key), e.answer(s.Key)
	}
	e.batches = append(e.batches, keys)
	return answers
}

// A job is not sent before an earlier one with the same guard is answered, in the same batch
// and in the batches after it.
func TestForwarder_SendOrder(t *testing.T) {
	away := errors.New("away")
	e := &enqueuer{answer: func(key string) error {
		if key == "u2" || key == "free2" {
			return away
		}
		return nil
	}}
	f := &Forwarder{Client: e}
	job := func(key string, set ...client.Option) row {
		s := client.Spec{Queue: "q", Key: key}
		for _, option := range set {
			option(&s)
		}
		return row{job: s}
	}
	unique, rate, debounce := client.Unique("k", 1), client.RateLimit("k", 1), client.Debounce("k", 1)
	held := make(map[string]bool)
	errs := f.send(t.Context(), []row{
		job("free1"), job("u1", unique), job("r1", rate), job("d1", debounce), {err: errors.New("invalid")},
		job("free2"), job("u2", unique), job("d2", debounce), job("u3", unique, rate), job("r2", rate), job("d3", debounce),
	}, held)
	if want := "[[free1 u1 r1 d1 free2] [u2 d2] [d3]]"; fmt.Sprint(e.batches) != want {
		t.Errorf("sent %v, want %s", e.batches, want)
	}
	for i, want := range map[int]error{1: nil, 5: away, 6: away, 7: nil, 8: errHeld, 9: errHeld, 10: nil} {
		if !errors.Is(errs[i], want) {
			t.Errorf("row %d: %v, want %v", i, errs[i], want)
		}
	}
	if errs[4] == nil {
		t.Error("an invalid row was sent")
	}

	e.batches = nil
	f.send(t.Context(), []row{job("u4", unique), job("r3", rate), job("free3")}, held)
	if !slices.Equal(e.batches[0], []string{"free3"}) {
		t.Errorf("the next batch sent %v", e.batches)
	}
}

// What repeating does not change is a refusal; what it may change is not.
func TestIsRefusal(t *testing.T) {
	for err, want := range map[error]bool{
		fmt.Errorf("enqueue: %w", client.ErrInvalidJob): true, client.ErrConflict: true, client.ErrRateLimited: true, client.ErrTooLarge: true,
		client.ErrUnavailable: false, client.ErrUnauthorized: false, context.DeadlineExceeded: false, &client.Error{Code: "INTERNAL"}: false,
	} {
		if isRefusal(err) != want {
			t.Errorf("%v is a refusal: %t", err, !want)
		}
	}
}
