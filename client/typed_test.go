package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
)

// letter is a job that names its queue.
type letter struct {
	To     string  `json:"to"`
	Weight float64 `json:"weight"`
}

func (letter) Kind() string  { return "post" }
func (letter) Queue() string { return "letters" }

// stamp is the result of a letter.
type stamp struct {
	For     string `json:"for"`
	Attempt int    `json:"attempt"`
}

// weighing is a letter that names its result.
type weighing letter

func (weighing) Kind() string       { return "weigh" }
func (weighing) Queue() string      { return "letters" }
func (weighing) Returns() (r stamp) { return }

// chore is a job of the default queue.
type chore struct {
	Name string `json:"name"`
}

func (chore) Kind() string { return "chore" }

// handleChores registers a handler of chores, which calls do.
func handleChores(w *client.Worker, do func(ctx context.Context, job *client.Job[chore]) (string, error)) {
	client.Handle(w, do)
}

func TestTyped(t *testing.T) {
	c := connect(t)
	w := c.Worker()
	client.Handle(w, func(_ context.Context, job *client.Job[letter]) (stamp, error) {
		return stamp{For: job.Args.To, Attempt: job.Attempt}, nil
	})
	client.Handle(w, func(_ context.Context, job *client.Job[weighing]) (stamp, error) {
		return stamp{For: job.Args.To, Attempt: job.Attempt}, nil
	})
	var order []string
	for _, name := range []string{"outer", "inner"} {
		w.Use(func(next client.HandlerFunc) client.HandlerFunc {
			return func(ctx context.Context, job *client.JobInfo) (any, error) {
				if job.Function == "post" && job.Queue == "ordered" {
					order = append(order, name)
				}
				return next(ctx, job)
			}
		})
	}
	client.Handle(w, func(context.Context, *client.Job[letter]) (stamp, error) { return stamp{}, nil }, client.Queue("ordered"))
	snoozed, started, stopped := make(chan time.Time, 2), make(chan struct{}, 2), make(chan error, 1)
	handleChores(w, func(ctx context.Context, job *client.Job[chore]) (string, error) {
		switch job.Args.Name {
		case "snooze":
			if snoozed <- time.Now(); len(snoozed) == 1 {
				return "", fmt.Errorf("not today: %w", client.Snooze(50*time.Millisecond))
			}
		case "panic":
			panic("out of paper")
		case "log":
			job.Logger(ctx).With("size", 4).Warn("careful", "to", "ann")
		case "wait":
			started <- struct{}{}
			<-ctx.Done()
			stopped <- client.StopReason(ctx)
			return "", ctx.Err()
		}
		return fmt.Sprint(job.Args.Name, " done by attempt ", job.Attempt), nil
	})
	work(t, w)

	t.Run("a call has the result", func(t *testing.T) {
		got, err := client.Call[stamp](t.Context(), c, letter{To: "ann", Weight: 0.5})
		if want := (stamp{"ann", 1}); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	})
	t.Run("args that name their result", func(t *testing.T) {
		got, err := client.Do(t.Context(), c, weighing{To: "ann"})
		if want := (stamp{"ann", 1}); err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
		if got, err := client.Do(t.Context(), c, &weighing{To: "bob"}); err != nil || got.For != "bob" {
			t.Errorf("%+v, %v", got, err)
		}
		for name, handle := range map[string]func(w *client.Worker){
			"client_test.stamp": func(w *client.Worker) {
				client.Handle(w, func(context.Context, *client.Job[weighing]) (string, error) { return "", nil })
			},
			"": func(w *client.Worker) {
				client.Handle(w, func(context.Context, *client.Job[weighing]) (*stamp, error) { return nil, nil })
				client.Handle(w, func(context.Context, *client.Job[weighing]) (any, error) { return nil, nil }, client.Queue("other"))
				client.Handle(w, func(context.Context, *client.Job[*weighing]) (stamp, error) { return stamp{}, nil }, client.Queue("third"))
			},
		} {
			func() {
				defer func() {
					if problem := recover(); (problem != nil) != (name != "") || problem != nil && !strings.Contains(fmt.Sprint(problem), name) {
						t.Errorf("handlers that may not return %q: %v", name, problem)
					}
				}()
				handle(c.Worker())
			}()
		}
	})
	t.Run("params of another type", func(t *testing.T) {
		id, err := c.Enqueue(t.Context(), client.Spec{Queue: "letters", Function: "post", Params: map[string]any{"to": 7}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Await[stamp](t.Context(), c, id)
		failed, ok := errors.AsType[*client.JobError](err)
		if !ok || failed.Type != "invalid" || failed.Attempts != 1 || !strings.Contains(failed.Message, "client_test.letter") {
			t.Errorf("error is %v", err)
		}
	})
	t.Run("middleware", func(t *testing.T) {
		if _, err := client.Call[stamp](t.Context(), c, letter{}, client.Queue("ordered")); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(order, []string{"outer", "inner"}) {
			t.Errorf("middleware ran in the order %q", order)
		}
	})
	t.Run("a snooze counts no attempt", func(t *testing.T) {
		got, err := client.Call[string](t.Context(), c, chore{"snooze"}, client.MaxAttempts(1))
		if err != nil || got != "snooze done by attempt 1" {
			t.Fatalf("%q, %v", got, err)
		}
		if first, second := <-snoozed, <-snoozed; second.Sub(first) < 50*time.Millisecond {
			t.Errorf("the job ran again after %s", second.Sub(first))
		}
	})
	t.Run("a panic is a failure with a stack", func(t *testing.T) {
		_, err := client.Call[string](t.Context(), c, chore{"panic"}, client.MaxAttempts(1))
		failed, ok := errors.AsType[*client.JobError](err)
		if !ok || failed.Type != "panic" || !strings.Contains(failed.Message, "out of paper") {
			t.Fatalf("error is %v", err)
		}
		page := dead(t, c, failed.ID)
		if !strings.Contains(string(page.Error.Details), "typed_test.go") {
			t.Errorf("the dead letter has the details %s, want a stack", page.Error.Details)
		}
	})
	t.Run("log records reach the job's log", func(t *testing.T) {
		id, err := client.Enqueue(t.Context(), c, chore{"log"})
		if err == nil {
			_, err = client.Await[string](t.Context(), c, id)
		}
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			reply, err := c.Jobs().Logs(t.Context(), id, 10)
			if err != nil {
				return err
			}
			lines := fmt.Sprintf("%s", reply.Lines)
			if !strings.Contains(lines, `"careful size=4 to=ann"`) || !strings.Contains(lines, `"warn"`) {
				return fmt.Errorf("the log has %s", lines)
			}
			return nil
		})
	})
	t.Run("the cause of a stop", func(t *testing.T) {
		id, err := client.Enqueue(t.Context(), c, chore{"wait"})
		if err != nil {
			t.Fatal(err)
		}
		<-started // a job that is cancelled before runs no handler
		if _, err := c.Jobs().Cancel(t.Context(), id, "a test"); err != nil {
			t.Fatal(err)
		}
		_, err = client.Await[string](t.Context(), c, id)
		if failed, ok := errors.AsType[*client.JobError](err); !ok || failed.Type != "cancelled" || failed.Reason != "a test" || !strings.HasSuffix(err.Error(), "was cancelled after 1 attempts: a test") {
			t.Errorf("cancelled: %v", err)
		}
		if reason := <-stopped; !errors.Is(reason, client.ErrCancelled) {
			t.Errorf("the reason to stop is %v", reason)
		}
		_, err = client.Call[string](t.Context(), c, chore{"wait"}, client.Timeout(time.Second))
		if failed, ok := errors.AsType[*client.JobError](err); !ok || failed.Type != "timeout" {
			t.Errorf("timed out: %v", err)
		}
		if reason := <-stopped; !errors.Is(reason, client.ErrDeadline) {
			t.Errorf("the reason to stop is %v", reason)
		}
	})
	t.Run("conflicts", func(t *testing.T) {
		held := []client.Option{client.Queue("held"), client.Unique("one", time.Hour)}
		first, err := client.Enqueue(t.Context(), c, chore{"a"}, held...)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Enqueue(t.Context(), c, chore{"b"}, held...)
		if refused, ok := errors.AsType[*client.Error](err); !errors.Is(err, client.ErrConflict) || !ok || refused.JobID != first {
			t.Errorf("error is %v", err)
		}
		if id, err := client.Enqueue(t.Context(), c, chore{"b"}, append(held, client.OnConflict(client.UseExisting))...); err != nil || id != first {
			t.Errorf("the existing job is %q, %v; want %s", id, err, first)
		}
	})
	t.Run("many", func(t *testing.T) { enqueueMany(t, c) })
}

// enqueueMany checks that EnqueueMany answers for each of many jobs.
func enqueueMany(t *testing.T, c *client.Client) {
	const n = 10_000
	var ran atomic.Int64
	w := c.Worker()
	w.Concurrency = 100
	client.Handle(w, func(_ context.Context, job *client.Job[chore]) (any, error) {
		ran.Add(1)
		return nil, nil
	}, client.Queue("many"))
	work(t, w)
	specs := make([]client.Spec, n)
	for i := range specs {
		specs[i] = client.Spec{Queue: "many", Function: "chore", Params: chore{Name: fmt.Sprint(i)}, Key: fmt.Sprint(i % (n - 1))}
	}
	specs[3].Priority = new(77)
	seen := make(map[string]bool)
	for i, answer := range c.EnqueueMany(t.Context(), specs) {
		switch {
		case i == 3 && !errors.Is(answer.Err, client.ErrInvalidJob):
			t.Errorf("an invalid job: %v", answer.Err)
		case i != 3 && answer.Err != nil:
			t.Errorf("job %d: %v", i, answer.Err)
		case i != 3:
			seen[answer.ID] = true
		}
	}
	if len(seen) != n-2 { // one is invalid, two have the same key
		t.Errorf("%d different jobs, want %d", len(seen), n-2)
	}
	eventually(t, func() error {
		if ran.Load() < n-2 {
			return fmt.Errorf("%d of %d jobs ran", ran.Load(), n-2)
		}
		return nil
	})
	if answers := client.EnqueueMany(t.Context(), c, []chore{{"x"}, {"y"}}, client.Queue("many")); len(answers) != 2 || answers[0].Err != nil || answers[1].Err != nil {
		t.Errorf("answers are %+v", answers)
	}
}

// TestWorker_Stop checks that Stop waits for a running job, and that a worker runs once.
func TestWorker_Stop(t *testing.T) {
	c := connect(t)
	started, proceed := make(chan struct{}), make(chan struct{})
	early := c.Worker()
	handleChores(early, func(context.Context, *client.Job[chore]) (string, error) { return "", nil })
	if err := errors.Join(early.Stop(t.Context()), early.Run(t.Context())); err != nil {
		t.Errorf("stopped before Run: %v", err)
	}
	w := c.Worker()
	handleChores(w, func(context.Context, *client.Job[chore]) (string, error) {
		close(started)
		<-proceed
		return "done", nil
	})
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(t.Context()); err != nil {
			t.Error(err)
		}
	})
	id, err := client.Enqueue(t.Context(), c, chore{"last"})
	if err != nil {
		t.Fatal(err)
	}
	<-started
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Stop(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("while a job runs: %v", err)
	}
	close(proceed)
	if err := w.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	running.Wait()
	if got, err := client.Await[string](t.Context(), c, id); err != nil || got != "done" {
		t.Errorf("%q, %v", got, err)
	}
	if err := w.Run(t.Context()); err == nil {
		t.Error("a worker runs twice")
	}
}

// dead returns the dead letter of a job, as soon as it is stored.
func dead(t *testing.T, c *client.Client, id string) (letter api.DeadLetter) {
	t.Helper()
	eventually(t, func() error {
		for l, err := range c.DeadLetters().List(t.Context(), api.DeadLetterRequest{}) {
			if err != nil {
				return err
			}
			if strings.HasSuffix(id, l.ID) {
				letter = l
				return nil
			}
		}
		return fmt.Errorf("job %s has no dead letter", id)
	})
	return letter
}

// eventually waits until fact returns nil.
func eventually(t *testing.T, fact func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := fact()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
