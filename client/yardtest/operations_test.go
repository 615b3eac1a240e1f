package yardtest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/client"
)

// A schema refuses jobs when they are enqueued, and the jobs of a cron entry when they are due.
func TestSchemas(t *testing.T) {
	bubble(t, func(h *harness) {
		if _, err := client.SetSchema[SendMail](h.Context(), h.c); err != nil {
			h.Fatal(err)
		}
		if _, err := client.Enqueue(h.Context(), h.c, SendMail{To: "ann"}); err != nil {
			h.Error(err)
		}
		for range 4 { // at each member, and one of them again
			c := h.Client()
			_, err := c.Enqueue(h.Context(), client.Spec{Queue: "mail", Function: "send_mail", Params: map[string]int{"to": 7}})
			refused, ok := errors.AsType[*client.Error](err)
			if !ok || !errors.Is(err, client.ErrInvalid) || refused.Path != "/to" {
				h.Errorf("error is %v", err)
			}
		}
		s, err := h.c.Schemas().Get(h.Context(), "mail", "send_mail")
		if err != nil || s.Refused != 4 {
			h.Errorf("schema %s, %v; want four refusals", asJSON(s), err)
		}
		if err := h.c.Queues().Create(h.Context(), "late"); err != nil {
			h.Fatal(err)
		}
		_, err = h.c.Cron().Add(h.Context(), api.CronChange{Name: "hourly", Schedule: "0 * * * *", Queue: "late", Job: []byte(`{"function":"f","params":{"n":"x"}}`)})
		if err != nil {
			h.Fatal(err)
		}
		_, err = h.c.Schemas().Set(h.Context(), api.SchemaChange{
			SchemaRequest: api.SchemaRequest{Queue: "late", Function: "f"}, Schema: []byte(`{"properties":{"n":{"type":"integer"}}}`),
		})
		if err != nil {
			h.Fatal(err)
		}
		h.Advance(61 * time.Minute)
		if j := h.only("late"); j.State != "failed" || j.Error == nil || j.Error.Type != "rejected" {
			h.Errorf("the job of the cron entry is %s", asJSON(j))
		}
	})
}

// A queue takes the keys of its jobs from their params, and a limit bounds the jobs of each key.
func TestLimits(t *testing.T) {
	bubble(t, func(h *harness) {
		if err := h.c.Queues().Create(h.Context(), "mail"); err != nil {
			h.Fatal(err)
		}
		if _, err := h.c.Limits().Set(h.Context(), api.LimitChange{Name: "stripe", PerKey: api.SetTo[int64](2)}); err != nil {
			h.Fatal(err)
		}
		_, err := h.c.Queues().Set(h.Context(), api.QueueChange{Name: "mail", StartSettings: api.StartSettings{
			Limits: api.SetTo([]string{"stripe"}), Key: api.SetTo("params.customer"),
		}})
		if err != nil {
			h.Fatal(err)
		}
		_, err = h.c.Enqueue(h.Context(), client.Spec{Queue: "mail", Params: map[string]string{"name": "ann"}})
		if !errors.Is(err, client.ErrInvalid) || !strings.Contains(err.Error(), "params.customer") {
			h.Errorf("a job without a key: %v", err)
		}
		var mu sync.Mutex
		running, most := map[string]int{}, map[string]int{}
		w := h.c.Worker()
		w.Concurrency = 20
		w.Handle("mail", "", func(_ context.Context, job *client.JobInfo) (any, error) {
			var params struct {
				Customer string `json:"customer"`
			}
			if err := job.Decode(&params); err != nil {
				return nil, err
			}
			count := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				running[params.Customer] += n
				most[params.Customer] = max(most[params.Customer], running[params.Customer])
			}
			count(1)
			time.Sleep(time.Second)
			count(-1)
			return nil, nil
		})
		h.Work(w)
		for i := range 12 {
			h.enqueue(client.Spec{Queue: "mail", Params: map[string]string{"customer": []string{"acme", "beta"}[i%2]}})
		}
		began := time.Now()
		h.Drain()
		if took := time.Since(began); most["acme"] != 2 || most["beta"] != 2 || took < 3*time.Second {
			h.Errorf("%v ran at the same time, for %s; want 2 of each customer, for three seconds", most, took)
		}
	})
}

// A job and a queue are explained, with the history of the job.
func TestExplain(t *testing.T) {
	bubble(t, func(h *harness) {
		h.work("mail", succeed)
		done := h.enqueue(client.Spec{Queue: "mail"})
		h.Drain()
		nobody := h.enqueue(client.Spec{Queue: "nobody"})
		delayed := h.enqueue(client.Spec{Queue: "mail", RunAt: time.Now().Add(time.Hour)})
		for id, want := range map[string]string{done: "completed", nobody: "no worker", delayed: "due at"} {
			e, err := h.c.Jobs().Explain(h.Context(), id)
			if err != nil || !strings.Contains(strings.ToLower(e.Verdict), want) {
				h.Errorf("%q, %v; want %q", e.Verdict, err, want)
			}
			if id != done {
				continue
			}
			var events strings.Builder
			for _, line := range e.History.Events {
				events.Write(line)
			}
			for _, event := range []string{"DispatchQueued", "DispatchNotified", "DispatchDelivered"} {
				if !strings.Contains(events.String(), event) {
					h.Errorf("the history lacks %s: %s", event, events.String())
				}
			}
		}
		if e, err := h.c.Queues().Explain(h.Context(), "nobody"); err != nil || len(e.Reasons) == 0 {
			h.Errorf("queue: %s, %v", asJSON(e), err)
		}
	})
}

// Workers are listed with what they run, and its progress.
func TestWorkers(t *testing.T) {
	bubble(t, func(h *harness) {
		proceed := make(chan struct{})
		h.work("mail", func(ctx context.Context, job *client.JobInfo) (any, error) {
			err := job.Progress(ctx, 40, nil)
			<-proceed
			return nil, err
		})
		id := h.enqueue(client.Spec{Queue: "mail"})
		h.Advance(time.Second)
		list, err := h.c.Workers(h.Context(), api.WorkerRequest{})
		if err != nil || len(list.Nodes) != 3 {
			h.Fatalf("%s, %v; want three members", asJSON(list), err)
		}
		var running []string
		for _, n := range list.Nodes {
			for _, w := range n.Workers {
				for _, j := range w.Jobs {
					running = append(running, j.JID)
				}
			}
		}
		if len(running) != 1 || running[0] != id {
			h.Errorf("workers run %q, want %s", running, id)
		}
		j, err := h.c.Jobs().Get(h.Context(), id)
		if err != nil || j.Progress == nil || *j.Progress.Percent != 40 {
			h.Errorf("the job is %s, %v; want its progress", asJSON(j), err)
		}
		close(proceed)
		h.Drain()
	})
}

// A drained worker finishes what it runs and gets no other job until it is resumed.
func TestDrainWorker(t *testing.T) {
	bubble(t, func(h *harness) {
		proceed := make(chan struct{})
		h.work("mail", func(context.Context, *client.JobInfo) (any, error) {
			<-proceed
			return nil, nil
		})
		first := h.enqueue(client.Spec{Queue: "mail"})
		h.Advance(time.Second)
		worker := h.worker()
		d, err := h.c.DrainWorker(h.Context(), worker)
		if err != nil || !d.Drained || d.Running != 1 || d.Worker != worker {
			h.Fatalf("%s, %v", asJSON(d), err)
		}
		second := h.enqueue(client.Spec{Queue: "mail"})
		close(proceed)
		h.Advance(time.Minute)
		for id, want := range map[string]string{first: "completed", second: "waiting"} {
			if j, err := h.c.Jobs().Get(h.Context(), id); err != nil || j.State != want {
				h.Errorf("%s is %s, %v; want it %s", id, asJSON(j), err, want)
			}
		}
		if e, err := h.c.Queues().Explain(h.Context(), "mail"); err != nil || !strings.Contains(e.Verdict, "1 of 1 drained") {
			h.Errorf("the verdict is %q, %v", e.Verdict, err)
		}
		if d, err := h.c.ResumeWorker(h.Context(), worker); err != nil || d.Drained || d.Running != 0 {
			h.Errorf("%s, %v", asJSON(d), err)
		}
		h.Drain()
		if _, err := h.c.DrainWorker(h.Context(), "nobody"); err == nil {
			h.Error("a worker that is not connected was drained")
		}
	})
}

// worker returns the id of the only worker.
func (h *harness) worker() (id string) {
	list, err := h.c.Workers(h.Context(), api.WorkerRequest{})
	for _, n := range list.Nodes {
		for _, w := range n.Workers {
			id = w.Worker
		}
	}
	if id == "" {
		h.Fatalf("no worker in %s, %v", asJSON(list), err)
	}
	return id
}
