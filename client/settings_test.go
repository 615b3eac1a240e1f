package client_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
)

// jobSettings checks that jobs that have not started are run now, put off, and given
// another priority, and that the settings of others are refused.
func jobSettings(t *testing.T, c *client.Client) {
	add := func(function string, at time.Time) string {
		return enqueue(t, c, client.Spec{Queue: "ordered", Function: function, RunAt: at})
	}
	tomorrow := time.Now().Add(24 * time.Hour)
	first, urgent, putOff, delayed := add("first", time.Time{}), add("urgent", tomorrow), add("put off", time.Time{}), add("delayed", tomorrow)
	set := func(id string, settings client.JobSettings, want string) {
		t.Helper()
		for range 2 { // repeating it changes nothing
			if state, err := c.Jobs().Set(t.Context(), id, settings); err != nil || state != want {
				t.Errorf("%+v: %q, %v; want %s", settings, state, err, want)
			}
		}
	}
	set(delayed, client.JobSettings{Now: true}, "waiting")
	set(urgent, client.JobSettings{RunAt: time.Now().Add(-time.Hour), Priority: new(9)}, "waiting")
	set(putOff, client.JobSettings{RunAt: tomorrow}, "delayed")
	if state, err := c.Jobs().Set(t.Context(), putOff, client.JobSettings{Delay: time.Hour}); err != nil || state != "delayed" {
		t.Errorf("a delay: %q, %v", state, err)
	}

	var mu sync.Mutex
	var order []string
	running, proceed := make(chan struct{}, 3), make(chan struct{})
	w := c.Worker()
	w.Concurrency = 1
	for _, function := range []string{"first", "urgent", "delayed"} {
		w.Handle("ordered", function, func(context.Context, *client.JobInfo) (any, error) {
			mu.Lock()
			order = append(order, function)
			mu.Unlock()
			running <- struct{}{}
			<-proceed
			return nil, nil
		})
	}
	work(t, w)
	refused := func(id string) {
		t.Helper()
		if _, err := c.Jobs().Set(t.Context(), id, client.JobSettings{Now: true}); !errors.Is(err, client.ErrConflict) {
			t.Errorf("error is %v", err)
		}
	}
	<-running
	refused(urgent) // active
	close(proceed)
	for _, id := range []string{urgent, first, delayed} {
		if _, err := c.Wait(t.Context(), id); err != nil {
			t.Error(err)
		}
	}
	refused(first) // completed
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(order, []string{"urgent", "first", "delayed"}) {
		t.Errorf("the jobs started in the order %q", order)
	}
	if _, err := c.Jobs().Set(t.Context(), "ordered:00000000-0000-4000-8000-000000000001", client.JobSettings{Now: true}); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("an unknown job: %v", err)
	}
	for _, settings := range []client.JobSettings{
		{}, {Priority: new(10)}, {Priority: new(-1)}, {Delay: -1}, {Now: true, RunAt: tomorrow}, {RunAt: tomorrow, Delay: time.Hour},
	} {
		if _, err := c.Jobs().Set(t.Context(), putOff, settings); !errors.Is(err, client.ErrInvalidJob) {
			t.Errorf("%+v: %v", settings, err)
		}
	}
}
