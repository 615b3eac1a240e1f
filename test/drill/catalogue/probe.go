package catalogue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/drill"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// probe measures, with jobs in a queue of their own, the latency from the enqueue
// call to the begin of the handler.
type probe struct {
	s        *drill.Harness
	producer *overhop.Producer
	stop     context.CancelFunc
	done     sync.WaitGroup

	mu    sync.Mutex
	began map[string]chan time.Time // receives the begin of a job, by key
	count int                       // of jobs enqueued
}

const probeQueue = "probe"

// newProbe starts a worker and a producer that use these nodes.
func newProbe(s *drill.Harness, nodes []string) *probe {
	s.AddQueues(probeQueue)
	p := &probe{s: s, producer: &overhop.Producer{Nodes: nodes, Name: "probe"}, began: map[string]chan time.Time{}}
	ctx, stop := context.WithCancel(s.Ctx)
	p.stop = stop
	w := overhop.Worker{Nodes: nodes, Name: "probe", Log: slog.New(slog.DiscardHandler), ShutdownGrace: time.Second}
	w.Handle(probeQueue, 8, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) {
		at := time.Now()
		key, _ := q.Payload.Str()
		p.mu.Lock()
		defer p.mu.Unlock()
		if c := p.began[key]; c != nil {
			c <- at
			delete(p.began, key)
		}
		return nil, nil
	})
	p.done.Go(func() { _ = w.Run(ctx) }) // ends with ctx
	return p
}

// close stops the worker and closes the producer.
func (p *probe) close() {
	p.stop()
	p.done.Wait()
	_ = p.producer.Close() // an error does not matter here
}

// probeInterval is the pause between two jobs, and probeTimeout limits each job.
const (
	probeInterval = 20 * time.Millisecond
	probeTimeout  = 20 * time.Second
)

// measure enqueues jobs one after the other during span, and returns their sorted
// latencies.
func (p *probe) measure(span time.Duration) (took []time.Duration) {
	for began := time.Now(); time.Since(began) < span; p.s.Sleep(probeInterval) {
		took = append(took, p.once())
	}
	slices.Sort(took)
	return took
}

// once measures the latency of one job.
func (p *probe) once() time.Duration {
	p.mu.Lock()
	p.count++
	key := fmt.Sprintf("probe-%d", p.count)
	started := make(chan time.Time, 1)
	p.began[key] = started
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(p.s.Ctx, probeTimeout)
	defer cancel()
	asked := time.Now()
	must.Get(p.producer.Enqueue(ctx, overhop.Enqueue{Queue: probeQueue, Key: key, Payload: overhop.AppendStr(nil, key)}))
	select {
	case at := <-started:
		return at.Sub(asked)
	case <-ctx.Done():
		must.Do(errors.Join(errors.New("the job of the probe has not begun"), ctx.Err()))
		return 0
	}
}

// compare reports the latencies under a fault next to the normal ones. The target for
// the p99 is factor times the normal p99. On a machine without idle processors the
// figures depend on the machine as well.
func (p *probe) compare(name string, normal, faulty []time.Duration, factor float64) {
	c, n := quantile(normal, 99), quantile(faulty, 99)
	p.s.Figure(name+": latency before", fmt.Sprintf("p50 %s p99 %s", quantile(normal, 50), c))
	p.s.Figure(name+": latency during", fmt.Sprintf("p50 %s p99 %s", quantile(faulty, 50), n))
	p.s.Target(name+": latency p99", n, max(time.Duration(factor*float64(c)), 20*time.Millisecond))
}

// quantile returns a percentile of sorted durations, 0 if there are none.
func quantile(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)].Round(100 * time.Microsecond)
}
