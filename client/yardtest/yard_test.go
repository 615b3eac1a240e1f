package yardtest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/client/yardtest"
	"github.com/yardmaster-dev/yardmaster/job"
)

// A job that is enqueued waits until virtual time passes. Then it runs, and its result is
// there.
func TestDrain(t *testing.T) {
	bubble(t, func(h *harness) {
		h.work("sums", func(_ context.Context, a *client.JobInfo) (any, error) {
			var terms []int
			if err := a.Decode(&terms); err != nil {
				return nil, err
			}
			return terms[0] + terms[1], nil
		})
		id := h.enqueue(client.Spec{Queue: "sums", Params: []int{2, 3}, Key: "first"})
		before := time.Now()
		h.expect("sums", "waiting", 0)
		if passed := time.Since(before); passed != 0 {
			h.Errorf("listing jobs took %s", passed)
		}
		h.Drain()
		h.expect("sums", "completed", 1)
		if j := h.only("sums"); string(j.Result) != "5" || string(j.Params) != "[2,3]" || j.Key != "first" {
			h.Errorf("job %s", asJSON(j))
		}
		result, err := h.c.Wait(h.Context(), id)
		var sum int
		if err = errors.Join(err, result.Decode(&sum)); err != nil || sum != 5 {
			h.Errorf("sum %d, %v", sum, err)
		}
		h.Drain() // nothing to do
	})
}

// A call that waits lets jobs run, too.
func TestWait(t *testing.T) {
	bubble(t, func(h *harness) {
		h.work("q", func(ctx context.Context, _ *client.JobInfo) (any, error) {
			select {
			case <-time.After(time.Minute):
				return "late", nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		began := time.Now()
		result, err := h.c.Wait(h.Context(), h.enqueue(client.Spec{Queue: "q"}))
		if err != nil || result.Attempts != 1 {
			h.Fatalf("%+v, %v", result, err)
		}
		if took := time.Since(began); took < time.Minute || took > 61*time.Second {
			h.Errorf("it took %s", took)
		}
	})
}

// RunOne runs one attempt of the job that has been due for longest, and no other.
func TestRunOne(t *testing.T) {
	bubble(t, func(h *harness) {
		var ran []string
		w := h.c.Worker()
		for _, queue := range []string{"a", "b"} {
			w.Handle(queue, "", func(_ context.Context, a *client.JobInfo) (any, error) {
				ran = append(ran, a.Queue)
				return nil, nil
			})
		}
		h.Work(w)
		for _, queue := range []string{"b", "a", "b"} {
			h.enqueue(client.Spec{Queue: queue})
			time.Sleep(time.Microsecond) // less than a job needs to start
		}
		for i, want := range []string{"b", "a", "b"} {
			j := h.RunOne()
			if j.State != "completed" || j.Queue != want || len(ran) != i+1 || ran[i] != want {
				h.Fatalf("run %d: job %s; ran %v", i, asJSON(j), ran)
			}
		}
		h.enqueue(client.Spec{Queue: "a"})
		h.enqueue(client.Spec{Queue: "a"})
		h.Fail("a", 1)
		if j := h.RunOne(); j.State != "delayed" || j.Attempts != 1 || j.Error.Type != "yardtest" {
			h.Errorf("job %s", asJSON(j))
		}
		h.Drain()
		if len(ran) != 4 {
			h.Errorf("ran %v", ran)
		}
	})
}

// RunOne runs the attempt to its end, however long it takes.
func TestRunOne_LongHandler(t *testing.T) {
	bubble(t, func(h *harness) {
		h.work("q", func(context.Context, *client.JobInfo) (any, error) {
			time.Sleep(time.Minute)
			return nil, nil
		})
		h.enqueue(client.Spec{Queue: "q"})
		h.enqueue(client.Spec{Queue: "q"})
		h.RunOne()
		states := func() (all []string) {
			for _, j := range h.Jobs("q") {
				all = append(all, j.State)
			}
			slices.Sort(all)
			return all
		}
		if got := states(); !slices.Equal(got, []string{"completed", "waiting"}) {
			h.Errorf("states %v", got)
		}
		h.Drain()
		if got := states(); !slices.Equal(got, []string{"completed", "completed"}) {
			h.Errorf("states %v", got)
		}
	})
}

// Delays and next attempts are due after virtual hours.
func TestAdvance(t *testing.T) {
	retries := job.Policy{MaxAttempts: 4, BaseDelay: time.Hour, MaxDelay: 24 * time.Hour}
	bubble(t, func(h *harness) {
		began := time.Now()
		var at []time.Duration
		h.work("late", succeed)
		h.work("flaky", func(context.Context, *client.JobInfo) (any, error) {
			at = append(at, time.Since(began).Round(time.Minute))
			return nil, errors.New("no")
		})
		h.enqueue(client.Spec{Queue: "late", RunAt: time.Now().Add(2 * time.Hour)})
		h.enqueue(client.Spec{Queue: "flaky"})
		h.Drain()
		h.expect("late", "delayed", 0)
		h.expect("flaky", "delayed", 1)
		h.Advance(119 * time.Minute)
		h.expect("late", "delayed", 0)
		h.expect("flaky", "delayed", 2)
		h.Advance(time.Minute)
		h.expect("late", "completed", 1)
		h.Advance(6 * time.Hour)
		h.expect("flaky", "failed", 4)
		if want := []time.Duration{0, time.Hour, 3 * time.Hour, 7 * time.Hour}; !slices.Equal(at, want) {
			h.Errorf("attempts after %v, want %v", at, want)
		}
	}, yardtest.Retries(retries))
}

// A cron entry enqueues a job for every tick.
func TestCron(t *testing.T) {
	bubble(t, func(h *harness) {
		var ticks atomic.Int32
		h.work("reports", func(context.Context, *client.JobInfo) (any, error) {
			ticks.Add(1)
			return nil, nil
		})
		_, err := h.c.Cron().Add(h.Context(), api.CronChange{Name: "hourly", Schedule: "0 * * * *", Queue: "reports", Job: []byte(`{"params":{}}`)})
		if err != nil {
			h.Fatal(err)
		}
		h.Advance(3*time.Hour + time.Minute)
		entry, err := h.c.Cron().Get(h.Context(), "hourly")
		if err != nil || ticks.Load() != 3 || entry.Fired != 3 || entry.LastState != "completed" {
			h.Errorf("%d ticks; entry %s, %v", ticks.Load(), asJSON(entry), err)
		}
	})
}

// A job that is cancelled ends, whether it waits, is delayed or runs.
func TestCancel(t *testing.T) {
	bubble(t, func(h *harness) {
		cause := make(chan error, 1)
		h.work("runs", func(ctx context.Context, _ *client.JobInfo) (any, error) {
			<-ctx.Done()
			cause <- context.Cause(ctx)
			return nil, ctx.Err()
		})
		if err := h.c.Queues().Create(h.Context(), "waits"); err != nil {
			h.Fatal(err)
		}
		h.enqueue(client.Spec{Queue: "runs", Key: "r"})
		h.enqueue(client.Spec{Queue: "waits", Key: "w"})
		h.enqueue(client.Spec{Queue: "waits", Key: "d", RunAt: time.Now().Add(time.Hour)})
		h.Advance(time.Second)
		h.expect("runs", "active", 1)
		for _, id := range []string{"runs:r", "waits:w", "waits:d"} {
			if _, err := h.c.Jobs().Cancel(h.Context(), id, "not needed"); err != nil {
				h.Error(err)
			}
		}
		h.Drain()
		for _, j := range h.Jobs("") {
			if j.State != "cancelled" || j.Cancellation.Reason != "not needed" {
				h.Errorf("job %s", asJSON(j))
			}
		}
		if err := <-cause; err == nil || !strings.Contains(err.Error(), "CANCELLED") {
			h.Errorf("the handler was stopped by %v", err)
		}
	})
}

// An attempt that exceeds its timeout is stopped and fails.
func TestDeadline(t *testing.T) {
	bubble(t, func(h *harness) {
		var took time.Duration
		h.work("slow", func(ctx context.Context, _ *client.JobInfo) (any, error) {
			began := time.Now()
			<-ctx.Done()
			took = time.Since(began)
			return nil, ctx.Err()
		})
		h.enqueue(client.Spec{Queue: "slow", Timeout: 90 * time.Second})
		h.Drain()
		h.expect("slow", "failed", 1)
		if j := h.only("slow"); j.Error.Type != job.FaultTimeout || took.Round(time.Second) != 90*time.Second {
			h.Errorf("after %s: %s", took, asJSON(j.Error))
		}
	})
}

// The job of a worker that is lost runs again at another one, with a higher fence, once the
// lease of the first is over.
func TestLoseWorker(t *testing.T) {
	bubble(t, func(h *harness) {
		type start struct {
			at    time.Time
			fence int64
		}
		starts := make(chan start, 2)
		handle := func(ctx context.Context, a *client.JobInfo) (any, error) {
			starts <- start{time.Now(), a.Fence}
			if a.Redelivered {
				return "done", nil
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		h.work("mail", handle)
		h.enqueue(client.Spec{Queue: "mail"})
		h.Advance(time.Second)
		h.work("mail", handle)
		first := <-starts
		h.LoseWorker()
		h.Drain()
		h.expect("mail", "completed", 1)
		second := <-starts
		if pause := second.at.Sub(first.at); second.fence <= first.fence || pause < 6*time.Second || pause > 15*time.Second {
			h.Errorf("fence %d after %d, %s later", second.fence, first.fence, pause)
		}
	})
}

// Jobs go on when the authority is killed: those that run, and those that wait.
func TestKillAuthority(t *testing.T) {
	bubble(t, func(h *harness) {
		h.work("q", func(context.Context, *client.JobInfo) (any, error) {
			time.Sleep(time.Minute)
			return nil, nil
		})
		h.enqueue(client.Spec{Queue: "q"})
		h.Advance(time.Second)
		for range 4 {
			h.enqueue(client.Spec{Queue: "q"})
			h.KillAuthority()
			h.Advance(20 * time.Second)
			h.Restart()
			h.Advance(20 * time.Second)
		}
		h.Drain()
		for _, j := range h.Jobs("q") {
			if j.State != "completed" || j.Attempts != 1 {
				h.Errorf("job %s", asJSON(j))
			}
		}
	})
}

// Without a majority nothing is decided, and Drain fails. Accepted jobs are not lost.
func TestKillAuthority_NoMajority(t *testing.T) {
	for _, members := range []int{1, 3} {
		t.Run(fmt.Sprint(members), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &stub{T: t}
				y := yardtest.New(s, yardtest.Members(members))
				c := y.Client()
				w := c.Worker()
				w.Handle("q", "", succeed)
				y.Work(w)
				if _, err := c.Enqueue(t.Context(), client.Spec{Queue: "q"}); err != nil {
					t.Fatal(err)
				}
				for range (members + 1) / 2 {
					y.Advance(time.Minute)
					y.KillAuthority()
				}
				want := fmt.Sprintf("Only %d of %d members run, which is no majority: call Restart", members/2, members)
				if got := fails(t, y.Drain); !strings.Contains(got, want) {
					t.Errorf("Drain: %s", got)
				}
				if got := fails(t, y.KillAuthority); !strings.Contains(got, want) {
					t.Errorf("KillAuthority: %s", got)
				}
				y.Restart()
				if _, err := c.Enqueue(t.Context(), client.Spec{Queue: "q"}); err != nil {
					t.Fatal(err)
				}
				y.Drain()
				for _, j := range y.Jobs("q") {
					if j.State != "completed" {
						t.Errorf("job %s", asJSON(j))
					}
				}
			})
		})
	}
}

// Fail makes attempts fail without a call of the handler.
func TestFail(t *testing.T) {
	bubble(t, func(h *harness) {
		calls := 0
		h.work("q", func(context.Context, *client.JobInfo) (any, error) {
			calls++
			return nil, nil
		})
		h.Fail("q", 2)
		h.enqueue(client.Spec{Queue: "q", RetryInterval: time.Second})
		h.Advance(time.Minute)
		h.expect("q", "completed", 3)
		if calls != 1 {
			h.Errorf("%d calls", calls)
		}
		h.Fail("q", 1)
		if _, err := h.c.Wait(h.Context(), h.enqueue(client.Spec{Queue: "q", MaxAttempts: 1})); err == nil || !strings.Contains(err.Error(), "the test makes this attempt fail") {
			h.Errorf("error %v", err)
		}
	})
}

// letter is the params of jobs, by which their function is called.
type letter struct {
	To     string  `json:"to"`
	Pages  int     `json:"pages"`
	Weight float64 `json:"weight"`
}

func (letter) Kind() string { return "letter" }

// ExpectEnqueued finds a job by its function and params, and shows what is there instead.
func TestExpectEnqueued(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y := yardtest.New(&stub{T: t})
		c := y.Client()
		if got := fails(t, func() { y.ExpectEnqueued(letter{}) }); !strings.Contains(got, "no jobs at all") {
			t.Errorf("message %q", got)
		}
		if err := c.Queues().Create(t.Context(), "post"); err != nil {
			t.Fatal(err)
		}
		for _, j := range []client.Spec{
			{Function: "letter", Params: letter{"ann", 2, 20}}, {Function: "letter", Params: letter{"ben", 3, 0.5}},
			{Function: "parcel", Params: letter{"ann", 1, 1}}, {Function: "bare"},
		} {
			j.Queue = "post"
			if _, err := c.Enqueue(t.Context(), j); err != nil {
				t.Fatal(err)
			}
		}
		for _, args := range []client.Args{
			letter{"ann", 2, 20}, letter{"ben", 3, 0.5}, yardtest.Call("parcel", letter{"ann", 1, 1}), yardtest.Call("bare", nil),
		} {
			if j := y.ExpectEnqueued(args); j.Queue != "post" || j.Function != args.Kind() {
				t.Errorf("%v found %s", args, asJSON(j))
			}
		}
		got := fails(t, func() { y.ExpectEnqueued(letter{"ann", 1, 1}) })
		for _, want := range []string{`no job letter({"to":"ann","pages":1,"weight":1}) was enqueued; there are 4 jobs:`, `waiting after 0 attempts: letter({"pages":2,"to":"ann","weight":20})`} {
			if !strings.Contains(got, want) {
				t.Errorf("message %q, want %q", got, want)
			}
		}
	})
}

// Jobs of higher priorities start first.
func TestPriorities(t *testing.T) {
	bubble(t, func(h *harness) {
		var order []int
		w := h.c.Worker()
		w.Concurrency = 1
		w.Handle("q", "", func(_ context.Context, a *client.JobInfo) (any, error) {
			var priority int
			err := a.Decode(&priority)
			order = append(order, priority)
			return nil, err
		})
		h.Work(w)
		for _, priority := range []int{3, 9, 0, 5, 7} {
			h.enqueue(client.Spec{Queue: "q", Params: priority, Priority: &priority})
		}
		h.Drain()
		if !slices.Equal(order, []int{9, 7, 5, 3, 0}) {
			h.Errorf("order %v", order)
		}
	})
}

// A worker that cannot work makes the test fail.
func TestWork_Fails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &stub{T: t}
		y := yardtest.New(s)
		y.Work(y.Client().Worker())
		if len(s.failures) != 1 || !strings.Contains(s.failures[0], "worker has no handlers") {
			t.Errorf("failures %q", s.failures)
		}
	})
}

// Large params and results are stored apart and shown all the same.
func TestLargeValues(t *testing.T) {
	bubble(t, func(h *harness) {
		h.work("q", func(_ context.Context, a *client.JobInfo) (any, error) {
			var text []byte
			err := a.Decode(&text)
			return bytes.ToUpper(text), err
		})
		text := bytes.Repeat([]byte("text"), 500_000)
		result, err := h.c.Wait(h.Context(), h.enqueue(client.Spec{Queue: "q", Params: text}))
		var got []byte
		if err = errors.Join(err, result.Decode(&got)); err != nil || !bytes.Equal(got, bytes.ToUpper(text)) {
			h.Errorf("%d bytes, %v", len(got), err)
		}
	})
}

// Dead letters can be listed and requeued.
func TestDeadLetters(t *testing.T) {
	bubble(t, func(h *harness) {
		h.work("q", succeed)
		h.Fail("q", 1)
		h.enqueue(client.Spec{Queue: "q", MaxAttempts: 1})
		h.Drain()
		h.expect("q", "failed", 1)
		if _, err := h.c.DeadLetters().Requeue(h.Context(), api.DeadLetterRequest{Queue: "q"}); err != nil {
			h.Fatal(err)
		}
		h.Drain()
		states := map[string]int{}
		for _, j := range h.Jobs("q") {
			states[j.State]++
		}
		if states["completed"] != 1 {
			h.Errorf("states %v", states)
		}
	})
}

// A thousand jobs of some queues run, each once.
func TestThousandJobs(t *testing.T) {
	bubble(t, func(h *harness) {
		var runs atomic.Int32
		w := h.c.Worker()
		for q := range 5 {
			w.Handle(fmt.Sprint("q", q), "", func(context.Context, *client.JobInfo) (any, error) {
				runs.Add(1)
				time.Sleep(time.Second)
				return nil, nil
			})
		}
		h.Work(w)
		for i := range 1000 {
			h.enqueue(client.Spec{Queue: fmt.Sprint("q", i%5), Params: i})
		}
		h.Drain()
		jobs := h.Jobs("")
		for _, j := range jobs {
			if j.State != "completed" || j.Attempts != 1 {
				h.Fatalf("job %s", asJSON(j))
			}
		}
		if len(jobs) != 1000 || runs.Load() != 1000 {
			h.Errorf("%d jobs ran %d times", len(jobs), runs.Load())
		}
	})
}

// Outside of a bubble, New fails with a message that shows how to call it.
func TestNew_OutsideBubble(t *testing.T) {
	got := fails(t, func() { yardtest.New(&stub{T: t}) })
	if !strings.Contains(got, "synctest.Test(t, func(t *testing.T) {") {
		t.Errorf("message %q", got)
	}
}

// A handler that ignores the end of the test makes it fail.
func TestStop_HandlerIgnoresContext(t *testing.T) {
	t.Parallel()
	s := &stub{T: t}
	synctest.Test(t, func(t *testing.T) {
		s.T = t
		release := make(chan struct{})
		t.Cleanup(func() { close(release) }) // after the yard has stopped
		y := yardtest.New(s)
		w := y.Client().Worker()
		w.Handle("q", "", func(context.Context, *client.JobInfo) (any, error) {
			<-release
			return nil, nil
		})
		y.Work(w)
		if _, err := y.Client().Enqueue(t.Context(), client.Spec{Queue: "q"}); err != nil {
			t.Fatal(err)
		}
		y.Advance(time.Second)
	})
	if len(s.failures) != 1 || !strings.Contains(s.failures[0], "a handler ignores that its context has ended") {
		t.Errorf("failures %q", s.failures)
	}
}

// BenchmarkNew starts and stops a yard of three members.
func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		runBubble(b, func(t *testing.T) { yardtest.New(t) })
	}
}

// BenchmarkHour lets an hour of virtual time pass at an idle yard with a worker.
func BenchmarkHour(b *testing.B) {
	for b.Loop() {
		runBubble(b, func(t *testing.T) {
			y := yardtest.New(t)
			w := y.Client().Worker()
			w.Handle("q", "", succeed)
			y.Work(w)
			y.Advance(time.Hour)
		})
	}
}

// runBubble runs a test in a bubble, which needs a test and not a benchmark.
func runBubble(b *testing.B, test func(*testing.T)) {
	b.Helper()
	always := func(string, string) (bool, error) { return true, nil }
	bubble := func(t *testing.T) { synctest.Test(t, test) }
	if !testing.RunTests(always, []testing.InternalTest{{Name: b.Name(), F: bubble}}) {
		b.FailNow()
	}
}
