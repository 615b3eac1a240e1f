package client_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/yardtest"
)

// TestWorker_Functions checks that a function stays within its limit, and that its jobs do
// not keep others of the queue waiting.
func TestWorker_Functions(t *testing.T) {
	yard(t, func(t *testing.T, y *yardtest.Yard, c *client.Client) {
		w := c.Worker()
		w.Concurrency = 3
		w.Functions = map[string]int{"chore": 2}
		var running, most atomic.Int32
		handleChoresIn(w, "letters", func() {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Minute)
			running.Add(-1)
		})
		handleLetters(w)
		y.Work(w)
		began := time.Now()
		for range 6 {
			add(t, c, chore{}, client.Queue("letters"), client.MaxAttempts(1))
		}
		id := add(t, c, letter{})
		if _, err := c.Wait(t.Context(), id); err != nil || time.Since(began) > time.Second {
			t.Errorf("the other function's job ended after %s: %v", time.Since(began), err)
		}
		y.Advance(5 * time.Minute)
		for _, j := range y.Jobs("letters") {
			if j.State != "completed" || j.Attempts != 1 {
				t.Errorf("a job is %s after %d attempts: %+v", j.State, j.Attempts, j.Error)
			}
		}
		if most.Load() != 2 {
			t.Errorf("%d jobs of the function ran at once, want 2", most.Load())
		}
	})
}

// handleChoresIn registers a handler of a queue's chores, which calls do.
func handleChoresIn(w *client.Worker, queue string, do func()) {
	client.Handle(w, func(context.Context, *client.Job[chore]) (any, error) { do(); return nil, nil }, client.Queue(queue))
}

// TestWorker_Run_Settings checks that a worker with a setting that is out of range, or has a
// typing error, does not start.
func TestWorker_Run_Settings(t *testing.T) {
	yard(t, func(t *testing.T, _ *yardtest.Yard, c *client.Client) {
		for want, change := range map[string]func(*client.Worker){
			"Concurrency is -1":            func(w *client.Worker) { w.Concurrency = -1 },
			"ShutdownGrace is -1s":         func(w *client.Worker) { w.ShutdownGrace = -time.Second },
			`no handler`:                   func(w *client.Worker) { w.Queues = map[string]int{"leters": 3} },
			`-3 for queue "letters"`:       func(w *client.Worker) { w.Queues = map[string]int{"letters": -3} },
			`has the function "psot"`:      func(w *client.Worker) { w.Functions = map[string]int{"psot": 3} },
			`0 for function "post"`:        func(w *client.Worker) { w.Functions = map[string]int{"post": 0} },
			`a handler is of the queue ""`: func(w *client.Worker) { handleChoresIn(w, "", func() {}) },
			`"a b": queue name must start`: func(w *client.Worker) { handleChoresIn(w, "a b", func() {}) },
		} {
			w := c.Worker()
			handleLetters(w)
			change(w)
			if err := w.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v, want %q", err, want)
			}
		}
		if err := c.Worker().Run(t.Context()); err == nil {
			t.Error("a worker without handlers runs")
		}
	})
}

// TestRanges checks the errors of values that are out of range.
func TestRanges(t *testing.T) {
	yard(t, func(t *testing.T, y *yardtest.Yard, c *client.Client) {
		for want, option := range map[string]client.Option{
			"Timeout is -1s":     client.Timeout(-time.Second),
			"Timeout is 106751d": client.Timeout(1<<63 - 1),
			"ResultTTL is 1µs":   client.ResultTTL(time.Microsecond),
		} {
			if _, err := client.Enqueue(t.Context(), c, chore{}, option); !errors.Is(err, client.ErrInvalidJob) || !strings.Contains(err.Error(), want) {
				t.Errorf("error is %v, want %q", err, want)
			}
		}
		w := c.Worker()
		handleChores(w, func(ctx context.Context, job *client.Job[chore]) (string, error) {
			switch job.Args.Name {
			case "retry":
				return "", client.RetryAfter(-time.Second)
			case "snooze":
				return "", client.Snooze(1<<63 - 1)
			}
			return "", job.Progress(ctx, 101, nil)
		})
		y.Work(w)
		for name, want := range map[string]string{
			"retry": "client.RetryAfter(-1s): the delay is 0 to ten years", "snooze": "client.Snooze(106751d23h47m16.854775807s)",
			"progress": "101 percent; it is 0 to 100",
		} {
			_, err := client.Call[string](t.Context(), c, chore{name}, client.MaxAttempts(1))
			if failed, ok := errors.AsType[*client.JobError](err); !ok || !strings.Contains(failed.Message, want) {
				t.Errorf("%s: error is %v, want %q", name, err, want)
			}
		}
	})
}
