package catalogue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"yardmaster/drill"
	"yardmaster/edge/overhop"
)

// probe measures how long jobs of a queue of their own take from the call that
// enqueues them to the begin of their handler.
type probe struct {
	s        *drill.Stage
	producer *overhop.Producer
	stop     context.CancelFunc
	done     sync.WaitGroup

	mu    sync.Mutex
	began map[string]chan time.Time // by key
	lost  int
}

const probeQueue = "probe"

func newProbe(ctx context.Context, s *drill.Stage, nodes []string) (*probe, error) {
	if err := s.AddQueue(ctx, probeQueue, 0); err != nil {
		return nil, err
	}
	p := &probe{s: s, producer: &overhop.Producer{Nodes: nodes, Name: "probe"}, began: map[string]chan time.Time{}}
	ctx, p.stop = context.WithCancel(ctx)
	w := overhop.Worker{Nodes: nodes, Name: "probe", Log: slog.New(slog.DiscardHandler), Grace: time.Second}
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
	return p, nil
}

// close ends the probe's worker.
func (p *probe) close() {
	p.stop()
	p.done.Wait()
	_ = p.producer.Close() // whatever it says, it is closed
}

// probeEvery is between two jobs of a probe, and probePatience for one of them.
const (
	probeEvery    = 20 * time.Millisecond
	probePatience = 20 * time.Second
)

// measure enqueues jobs, one after another, for a while.
func (p *probe) measure(ctx context.Context, span time.Duration) (took []time.Duration, err error) {
	for began := time.Now(); time.Since(began) < span; {
		d, err := p.once(ctx)
		if err != nil {
			return took, err
		}
		took = append(took, d)
		if err := p.s.Rest(ctx, probeEvery); err != nil {
			return took, err
		}
	}
	slices.Sort(took)
	return took, nil
}

func (p *probe) once(ctx context.Context) (time.Duration, error) {
	p.mu.Lock()
	p.lost++
	key := fmt.Sprintf("probe-%d", p.lost)
	heard := make(chan time.Time, 1)
	p.began[key] = heard
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	asked := time.Now()
	if _, err := p.producer.Enqueue(ctx, overhop.Enqueue{Queue: probeQueue, Key: key, Payload: overhop.AppendStr(nil, key)}); err != nil {
		return 0, fmt.Errorf("probe: %w", err)
	}
	select {
	case at := <-heard:
		return at.Sub(asked), nil
	case <-ctx.Done():
		return 0, errors.Join(errors.New("a probe's job does not begin"), ctx.Err())
	}
}

// compare tells how much slower it is now than when all was calm. On a machine
// whose processors are all taken, this says as much of the machine.
func (p *probe) compare(name string, calm, now []time.Duration, most float64) {
	c, n := at(calm, 99), at(now, 99)
	p.s.Figure(name+": a job begins after, calm", fmt.Sprintf("p50 %s p99 %s", at(calm, 50), c))
	p.s.Figure(name+": a job begins after, meanwhile", fmt.Sprintf("p50 %s p99 %s", at(now, 50), n))
	p.s.Target(name+": p99", n, max(time.Duration(most*float64(c)), 20*time.Millisecond))
}

// at is a quantile of sorted times.
func at(sorted []time.Duration, percent int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)].Round(100 * time.Microsecond)
}
