package runnerpool

import (
	"log/slog"
	"sync/atomic"
	"testing"

	"yardmaster/job"
)

// counter is an agent that starts a new job wherever there is room.
type counter struct {
	room chan struct{}
	left atomic.Int64
	done chan struct{}
}

func (c *counter) Offer(job.Offer)       {}
func (c *counter) Stalled(_, _ string)   {}
func (c *counter) Recovered(_, _ string) {}

func (c *counter) Log(job.LogLine) {}

func (c *counter) Report(o job.Outcome, _ func(job.Settled)) {
	if o.Status != job.Success {
		panic(o.Fault.Message)
	}
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
	c.room <- struct{}{}
}

// BenchmarkPool runs no-op jobs through one process with eight slots.
func BenchmarkPool(b *testing.B) {
	const slots = 8
	h := newHands()
	cfg := testConfig("", func(c *RunnerConfig) { c.MaxInFlight = slots })
	p := New(cfg, "n", h, slog.New(slog.DiscardHandler))
	done := make(chan error, 1)
	go func() { done <- p.Run(b.Context()) }()
	w := h.awaitOffer(slots)
	c := &counter{room: make(chan struct{}, slots), done: make(chan struct{})}
	c.left.Store(int64(b.N))
	p.mu.Lock()
	p.hands = c
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
