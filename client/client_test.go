package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

type mail struct {
	To    string `json:"to"`
	Count int64  `json:"count"`

	Price float64 `json:"price"`
	Big   uint64  `json:"big"`
}

// connect returns a client of a cluster of one node.
func connect(t *testing.T) *client.Client { return open(t, client.Options{}) }

// open is connect with other options.
func open(t *testing.T, opts client.Options) *client.Client {
	t.Helper()
	cl := clustertest.Start(t, 1, clustertest.RetryAfter(10*time.Millisecond))
	opts.Nodes, opts.Name = []string{cl.Members[0].Node().Addresses().Overhop}, t.Name()
	c, err := client.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// work runs a worker until the test ends.
func work(t *testing.T, w *client.Worker) {
	t.Helper()
	w.ShutdownGrace = 100 * time.Millisecond
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
}

// enqueue enqueues a job as soon as its queue exists.
func enqueue(t *testing.T, c *client.Client, j client.Spec) string {
	t.Helper()
	if err := c.Queues().Create(t.Context(), j.Queue); err != nil {
		t.Fatal(err)
	}
	id, err := c.Enqueue(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestClient(t *testing.T) {
	c := connect(t)
	var mu sync.Mutex
	var fences []int64
	w := c.Worker()
	w.Handle("mail", "send", func(ctx context.Context, a *client.JobInfo) (any, error) {
		var m mail
		if err := a.Decode(&m); err != nil {
			return nil, client.Permanent(err)
		}
		if err := a.Progress(ctx, 50, nil); err != nil {
			return nil, err
		}
		return mail{To: strings.ToUpper(m.To), Count: m.Count + 1, Price: m.Price, Big: m.Big}, a.Log(ctx, "sent to "+m.To)
	})
	w.Handle("mail", "flaky", func(_ context.Context, a *client.JobInfo) (any, error) {
		mu.Lock()
		fences = append(fences, a.Fence)
		mu.Unlock()
		if a.Attempt < 3 {
			return nil, fmt.Errorf("not yet: %w", client.RetryAfter(time.Millisecond))
		}
		return a.Attempt, nil
	})
	w.Handle("mail", "broken", func(context.Context, *client.JobInfo) (any, error) {
		return nil, client.Permanent(client.Coded(fmt.Errorf("no such user"), "NO_USER", mail{To: "ann", Price: 0.5}))
	})
	w.Handle("mail", "silent", func(context.Context, *client.JobInfo) (any, error) { return nil, nil })
	work(t, w)

	t.Run("result", func(t *testing.T) {
		const large = 1<<53 + 1 // a float64 would lose the last bit
		id := enqueue(t, c, client.Spec{Queue: "mail", Function: "send", Params: mail{To: "ann", Count: large, Price: 19.99, Big: 1<<64 - 1}})
		result, err := c.Wait(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		var m mail
		if err := result.Decode(&m); err != nil || m != (mail{"ANN", large + 1, 19.99, 1<<64 - 1}) {
			t.Errorf("result is %+v, %v", m, err)
		}
		if result.Attempts != 1 {
			t.Errorf("%d attempts", result.Attempts)
		}
	})
	t.Run("retries", func(t *testing.T) {
		result, err := c.Wait(t.Context(), enqueue(t, c, client.Spec{Queue: "mail", Function: "flaky"}))
		var attempt int
		if err == nil {
			err = result.Decode(&attempt)
		}
		if err != nil || attempt != 3 || result.Attempts != 3 {
			t.Errorf("attempt %d of %d, %v", attempt, result.Attempts, err)
		}
		mu.Lock()
		defer mu.Unlock()
		if !slices.IsSorted(fences) || len(slices.Compact(fences)) != 3 {
			t.Errorf("fences %d do not grow", fences)
		}
	})
	t.Run("permanent failure", func(t *testing.T) {
		_, err := c.Wait(t.Context(), enqueue(t, c, client.Spec{Queue: "mail", Function: "broken"}))
		var failed *client.JobError
		if !errors.As(err, &failed) || failed.Message != "no such user" || failed.Code != "NO_USER" || failed.Attempts != 1 {
			t.Fatalf("error is %v", err)
		}
		var details mail
		if err := failed.DecodeDetails(&details); err != nil || details != (mail{To: "ann", Price: 0.5}) {
			t.Errorf("details are %+v, %v", details, err)
		}
	})
	t.Run("no result", func(t *testing.T) {
		result, err := c.Wait(t.Context(), enqueue(t, c, client.Spec{Queue: "mail", Function: "silent"}))
		v := "unchanged"
		if err == nil {
			err = result.Decode(&v)
		}
		if err != nil || v != "unchanged" {
			t.Errorf("decoded %q, %v", v, err)
		}
	})
	t.Run("timeouts are retried if the job or its queue has it", func(t *testing.T) {
		w := c.Worker()
		w.Handle("slow", "", func(ctx context.Context, a *client.JobInfo) (any, error) {
			if a.Attempt == 1 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return "done", nil
		})
		work(t, w)
		slow := client.Spec{Queue: "slow", Timeout: 50 * time.Millisecond}
		var failed *client.JobError
		if _, err := c.Wait(t.Context(), enqueue(t, c, slow)); !errors.As(err, &failed) || failed.Attempts != 1 {
			t.Errorf("without retry_on_timeout: %v", err)
		}
		slow.RetryOnTimeout = new(true)
		if result, err := c.Wait(t.Context(), enqueue(t, c, slow)); err != nil || result.Attempts != 2 {
			t.Errorf("by the job: %d attempts, %v", result.Attempts, err)
		}
		slow.RetryOnTimeout = nil
		if _, err := c.Queues().Set(t.Context(), api.QueueChange{Name: "slow", RetryOnTimeout: api.SetTo(true)}); err != nil {
			t.Fatal(err)
		}
		if result, err := c.Wait(t.Context(), enqueue(t, c, slow)); err != nil || result.Attempts != 2 {
			t.Errorf("by the queue: %d attempts, %v", result.Attempts, err)
		}
	})
	t.Run("queue settings", func(t *testing.T) {
		if err := c.Queues().Create(t.Context(), "narrow"); err != nil {
			t.Fatal(err)
		}
		setLimit := func(limit int64) error {
			_, err := c.Queues().Set(t.Context(), api.QueueChange{Name: "narrow", Limit: api.SetTo(limit)})
			return err
		}
		if err := setLimit(1); err != nil {
			t.Fatal(err)
		}
		started, proceed := make(chan int64, 2), make(chan struct{})
		w := c.Worker()
		w.Handle("narrow", "", func(_ context.Context, a *client.JobInfo) (any, error) {
			started <- a.Fence
			<-proceed
			return nil, nil
		})
		work(t, w)
		ids := []string{enqueue(t, c, client.Spec{Queue: "narrow", Params: mail{}}), enqueue(t, c, client.Spec{Queue: "narrow", Params: mail{}})}
		<-started
		if err := setLimit(2); err != nil {
			t.Fatal(err)
		}
		<-started // the second job, beside the first
		close(proceed)
		for _, id := range ids {
			if _, err := c.Wait(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
		if _, err := c.Queues().Set(t.Context(), api.QueueChange{Name: "none", Limit: api.SetTo[int64](1)}); !errors.Is(err, client.ErrNotFound) {
			t.Errorf("a queue that does not exist: %v", err)
		}
		if err := setLimit(-1); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("a negative limit: %v", err)
		}
	})
	t.Run("job settings", func(t *testing.T) { jobSettings(t, c) })
	t.Run("key", func(t *testing.T) {
		j := client.Spec{Queue: "mail", Function: "silent", Key: "order 17"}
		if first, second := enqueue(t, c, j), enqueue(t, c, j); first != second {
			t.Errorf("one key gave two jobs: %s, %s", first, second)
		}
	})
}

// TestClient_Keys checks that unique, rate limit and debounce keys reach the cluster, and
// that a refusal has the job that holds the key, or the time until it is free.
func TestClient_Keys(t *testing.T) {
	c := connect(t)
	if err := c.Queues().Create(t.Context(), "keys"); err != nil {
		t.Fatal(err)
	}
	refused := func(j client.Spec, code string) *client.Error {
		t.Helper()
		j.Queue, j.Function = "keys", "f"
		_, err := c.Enqueue(t.Context(), j)
		refusal, ok := errors.AsType[*client.Error](err)
		if !ok || refusal.Code != code {
			t.Fatalf("error is %v, want %s", err, code)
		}
		return refusal
	}
	unique := client.Spec{Queue: "keys", Function: "f", UniqueKey: "u", UniqueUntil: "start", RetryInterval: time.Minute}
	holder := enqueue(t, c, unique)
	if refusal := refused(unique, "DUPLICATE_JOB"); refusal.JobID != holder {
		t.Errorf("the key is held by %q, want %s", refusal.JobID, holder)
	}
	refused(client.Spec{UniqueKey: "u", UniqueTTL: time.Hour}, "DUPLICATE_JOB")
	refused(client.Spec{UniqueKey: "u", UniqueUntil: "never"}, "INVALID_JOB_PAYLOAD")

	limited := client.Spec{Queue: "keys", Function: "f", RateLimitKey: "r", RateLimit: time.Hour}
	enqueue(t, c, limited)
	if refusal := refused(limited, "RATE_LIMITED"); refusal.RetryAfter < 50*time.Minute || refusal.RetryAfter > time.Hour {
		t.Errorf("the rate limit key is free in %s", refusal.RetryAfter)
	}
	debounced := client.Spec{Queue: "keys", Function: "f", DebounceKey: "d", Debounce: time.Hour}
	if first, second := enqueue(t, c, debounced), enqueue(t, c, debounced); first != second {
		t.Errorf("the second job did not replace the first: %s, %s", first, second)
	}
}

func TestClient_Errors(t *testing.T) {
	c := open(t, client.Options{RequireQueues: true})
	_, err := c.Enqueue(t.Context(), client.Spec{Queue: "nowhere"})
	var refused *client.Error
	if !errors.As(err, &refused) || !errors.Is(err, client.ErrNotFound) || refused.Code != "QUEUE_NOT_FOUND" || !strings.Contains(err.Error(), "nowhere") || refused.RetryAfter != 0 {
		t.Errorf("a queue that does not exist: %v, retry after %s", err, refused.RetryAfter)
	}
	ten := 10
	for _, j := range []client.Spec{
		{}, {Queue: "mail", MaxAttempts: -1}, {Queue: "mail", Timeout: time.Microsecond},
		{Queue: "mail", Priority: &ten}, {Queue: "mail", Params: func() {}}, {Queue: "mail", Params: 0.5},
		{Queue: "mail", RetryInterval: -time.Second}, {Queue: "mail", UniqueUntil: "end"}, {Queue: "mail", UniqueKey: "k", UniqueTTL: 1},
		{Queue: "mail", RateLimitKey: "k"}, {Queue: "mail", Debounce: time.Second}, {Queue: "mail", DebounceKey: "k", Debounce: -1},
	} {
		if _, err := c.Enqueue(t.Context(), j); !errors.Is(err, client.ErrInvalidJob) {
			t.Errorf("%+v: %v", j, err)
		}
	}
	if err := c.Worker().Run(t.Context()); err == nil {
		t.Error("a worker without handlers runs")
	}
	w := c.Worker()
	w.Handle("nowhere", "", func(context.Context, *client.JobInfo) (any, error) { return nil, nil })
	if err := w.Run(t.Context()); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("a worker of a queue that does not exist: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if c, err := client.Open(ctx, client.Options{Nodes: []string{"127.0.0.1:1"}}); err == nil {
		c.Close()
		t.Error("connected where nothing listens")
	} else if !strings.Contains(err.Error(), "127.0.0.1:1") {
		t.Errorf("error %q does not name the node", err)
	}
}
