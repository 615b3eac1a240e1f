package runnerpool

import (
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/yardmaster-dev/yardmaster/job"
)

// countingExecutor is an executor that starts a new job for every free slot.
type countingExecutor struct {
	room chan struct{}
	left atomic.Int64
	done chan struct{}
}

func (c *countingExecutor) Offer(job.Offer)       {}
func (c *countingExecutor) Stalled(_, _ string)   {}
func (c *countingExecutor) Recovered(_, _ string) {}

func (c *countingExecutor) Log(job.LogLine) {}

func (c *countingExecutor) Report(o job.Outcome, _ func(job.Settled)) {
	if o.Status != job.Success {
		panic(o.Fault.Message)
	}
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
	c.room <- struct{}{}
}

// BenchmarkPool runs jobs without work through one process with eight slots.
func BenchmarkPool(b *testing.B) {
	const slots = 8
	h := newRecorder()
	cfg := testConfig("", func(c *RunnerConfig) { c.MaxInFlight = slots })
	p := New(cfg, "n", h, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- p.Run(b.Context()) }()
	w := h.awaitOffer(slots)
	c := &countingExecutor{room: make(chan struct{}, slots), done: make(chan struct{})}
	c.left.Store(int64(b.N))
	p.mu.Lock()
	p.executor = c
	p.mu.Unlock()
	for range slots {
		c.room <- struct{}{}
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		<-c.room
		if !p.Start(assignment(n+1, "echo", w), specOf(`{"n":1}`)) {
			b.Fatal("no room")
		}
	}
	<-c.done
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
}
