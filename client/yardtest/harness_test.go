package yardtest_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/yardtest"
)

// harness is a yard with a client.
type harness struct {
	*testing.T
	*yardtest.Yard
	c *client.Client
}

// bubble runs a test with a yard in a bubble.
func bubble(t *testing.T, test func(*harness), options ...yardtest.Option) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y := yardtest.New(t, options...)
		test(&harness{t, y, y.Client()})
	})
}

// work runs a worker with one handler for jobs of a queue that name no function.
func (h *harness) work(queue string, handle client.HandlerFunc) {
	h.Helper()
	w := h.c.Worker()
	w.Handle(queue, "", handle)
	h.Work(w)
}

// enqueue enqueues a job.
func (h *harness) enqueue(j client.Spec) (id string) {
	h.Helper()
	id, err := h.c.Enqueue(h.Context(), j)
	if err != nil {
		h.Fatal(err)
	}
	return id
}

// only returns the one job of a queue.
func (h *harness) only(queue string) api.Job {
	h.Helper()
	jobs := h.Jobs(queue)
	if len(jobs) != 1 {
		h.Fatalf("queue %s has %d jobs, want one", queue, len(jobs))
	}
	return jobs[0]
}

// expect checks the state and the attempts of the one job of a queue.
func (h *harness) expect(queue, state string, attempts int) {
	h.Helper()
	if j := h.only(queue); j.State != state || int(j.Attempts) != attempts {
		h.Errorf("the job is %s after %d attempts (%s), want %s after %d", j.State, j.Attempts, j.Reason, state, attempts)
	}
}

// succeed is a handler that succeeds at once.
func succeed(context.Context, *client.JobInfo) (any, error) { return nil, nil }

// run runs a test in an example and prints whether it has passed.
func run(name string, test func(*testing.T)) {
	// With -v, package testing would print to the output of the example.
	verbose := flag.Lookup("test.v").Value
	defer verbose.Set(verbose.String())
	verbose.Set("false")
	always := func(string, string) (bool, error) { return true, nil }
	if testing.RunTests(always, []testing.InternalTest{{Name: name, F: test}}) {
		fmt.Println(name, "passed")
	}
}

// stub is a test that records its failures instead of failing. Fatalf ends the goroutine, so
// that what may fail runs in one of its own: see fails.
type stub struct {
	*testing.T
	mu       sync.Mutex
	failures []string
}

func (s *stub) Errorf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, fmt.Sprintf(format, args...))
}

func (s *stub) Fatal(args ...any) { panic(stubbed(fmt.Sprint(args...))) }

func (s *stub) Fatalf(format string, args ...any) { panic(stubbed(fmt.Sprintf(format, args...))) }

// stubbed is the message of a test that has failed for good.
type stubbed string

// fails returns the message with which do ends its test.
func fails(t *testing.T, do func()) (message string) {
	t.Helper()
	defer func() {
		switch cause := recover().(type) {
		case nil:
			t.Error("the test does not fail")
		case stubbed:
			message = string(cause)
		default:
			panic(cause)
		}
	}()
	do()
	return ""
}

func asJSON(v any) string {
	text, _ := json.Marshal(v)
	return string(text)
}
