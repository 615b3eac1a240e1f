package client_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/yardtest"
)

// yard runs a test with a yard in virtual time.
func yard(t *testing.T, test func(t *testing.T, y *yardtest.Yard, c *client.Client)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		y := yardtest.New(t)
		test(t, y, y.Client())
	})
}

// add enqueues a job.
func add(t *testing.T, c *client.Client, args client.Args, options ...client.Option) (id string) {
	t.Helper()
	id, err := client.Enqueue(t.Context(), c, args, options...)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// only returns the one job of a queue.
func only(t *testing.T, y *yardtest.Yard, queue string) api.Job {
	t.Helper()
	jobs := y.Jobs(queue)
	if len(jobs) != 1 {
		t.Fatalf("queue %s has %d jobs, want one", queue, len(jobs))
	}
	return jobs[0]
}

func handleLetters(w *client.Worker) {
	client.Handle(w, func(context.Context, *client.Job[letter]) (stamp, error) { return stamp{}, nil })
}

// TestWorker_UnknownFunction checks that a job which no worker knows yet loses no attempt: a
// release whose workers know it may come hours later.
func TestWorker_UnknownFunction(t *testing.T) {
	yard(t, func(t *testing.T, y *yardtest.Yard, c *client.Client) {
		old := c.Worker()
		handleLetters(old)
		y.Work(old)
		add(t, c, chore{"new"}, client.Queue("letters"), client.MaxAttempts(1))
		y.Advance(3 * time.Hour)
		j := only(t, y, "letters")
		if j.State != "delayed" || j.Attempts != 0 || j.Error == nil || !strings.Contains(j.Error.Message, `no handler for function "chore" of queue "letters"; it has "post"`) {
			t.Fatalf("the job is %s after %d attempts: %+v", j.State, j.Attempts, j.Error)
		}
		released := c.Worker()
		handleLetters(released)
		client.Handle(released, func(context.Context, *client.Job[chore]) (string, error) { return "done", nil }, client.Queue("letters"))
		y.Work(released)
		y.LoseWorker() // the old one, which has connected first
		y.Advance(10 * time.Minute)
		if j := only(t, y, "letters"); j.State != "completed" || j.Attempts != 1 {
			t.Errorf("the job is %s after %d attempts: %+v", j.State, j.Attempts, j.Error)
		}
	})
}

// TestWorker_UnknownFunction_Never checks that a job whose function no worker handles becomes a
// dead letter.
func TestWorker_UnknownFunction_Never(t *testing.T) {
	yard(t, func(t *testing.T, y *yardtest.Yard, c *client.Client) {
		w := c.Worker()
		handleLetters(w)
		y.Work(w)
		id := add(t, c, chore{"misspelt"}, client.Queue("letters"), client.MaxAttempts(2))
		_, err := c.Wait(t.Context(), id)
		failed, ok := errors.AsType[*client.JobError](err)
		if !ok || failed.Code != "UNKNOWN_FUNCTION" || failed.Attempts != 2 {
			t.Errorf("error is %+v", err)
		}
	})
}

// TestWorker_UnknownFunction_Own checks a handler of the user's own, within the middleware.
func TestWorker_UnknownFunction_Own(t *testing.T) {
	yard(t, func(t *testing.T, y *yardtest.Yard, c *client.Client) {
		var seen []string
		w := c.Worker()
		handleLetters(w)
		w.Use(func(next client.HandlerFunc) client.HandlerFunc {
			return func(ctx context.Context, job *client.JobInfo) (any, error) {
				seen = append(seen, job.Function)
				return next(ctx, job)
			}
		})
		w.UnknownFunction = func(context.Context, *client.JobInfo) (any, error) {
			return nil, client.Permanent(errors.New("not here"))
		}
		y.Work(w)
		add(t, c, chore{"new"}, client.Queue("letters"))
		y.Drain()
		if j := only(t, y, "letters"); j.State != "failed" || j.Attempts != 1 || j.Error.Message != "not here" {
			t.Errorf("the job is %s after %d attempts: %+v", j.State, j.Attempts, j.Error)
		}
		if !slices.Equal(seen, []string{"chore"}) {
			t.Errorf("the middleware has seen %q", seen)
		}
	})
}
