package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/agent"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// The latency that a node itself adds to a request is measured in this process: with
// an agent and a pool as in a node, between an authority that answers at once and a
// real runner process. The floor is a bare connection to such a runner.

// sideSlots is the number of slots of that runner.
const sideSlots = 64

// latencies are the latencies of requests through a node, or over a bare connection:
// until the handler began, and from then until the outcome was sent to the authority,
// or the answer read.
type latencies struct{ there, back []float64 } // µs

func (g *latencies) add(began, handled, ended time.Time) {
	g.there = append(g.there, float64(handled.Sub(began))/1e3)
	g.back = append(g.back, float64(ended.Sub(handled))/1e3)
}

func (g *latencies) rounds() (there, back round) { return latencyRound(g.there), latencyRound(g.back) }

// stampOf parses the result of a stamping runner.
func stampOf(result []byte) (time.Time, error) {
	ns, err := strconv.ParseInt(string(result), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("the runner's result %.40q is not a time: %w", result, err)
	}
	return time.Unix(0, ns), nil
}

// paced calls do rate times per second for d, never before the call is due.
func paced(t *task, rate int, d time.Duration, do func(i int)) {
	step, began := time.Second/time.Duration(rate), time.Now()
	for i := 0; time.Duration(i)*step < d; i++ {
		must.Do(backoff.Sleep(t, time.Until(began.Add(time.Duration(i)*step))))
		do(i)
	}
}

// directLatencies measures requests over bare connections, one request at a time on
// each, at a rate.
func directLatencies(t *task, program string, rate int, d time.Duration) (g latencies) {
	w := dialRunners(t, startRunners(t, stampCommand(program, ""), 1), sideSlots)
	idle := make(chan int, sideSlots)
	for i := range sideSlots {
		idle <- i
	}
	var mu sync.Mutex
	var fault error
	var calls sync.WaitGroup
	defer calls.Wait()
	paced(t, rate, d, func(int) {
		i := <-idle
		calls.Go(func() {
			began := time.Now()
			result, err := w.call(t, i, "echo", 0)
			ended := time.Now()
			var handled time.Time
			if err == nil {
				handled, err = stampOf(result)
			}
			mu.Lock()
			if err != nil {
				fault = err
			} else {
				g.add(began, handled, ended)
			}
			mu.Unlock()
			idle <- i
		})
	})
	calls.Wait()
	must.Do(fault)
	return g
}

// fakeCluster is an authority that answers at once. It records the time of each
// outcome.
type fakeCluster struct {
	never  chan struct{}
	offers chan job.Offer // receives the first offer with free slots

	mu    sync.Mutex
	began map[job.ID]time.Time
	legs  latencies
	fault error
	ended atomic.Int64
}

func (d *fakeCluster) Authority() (string, uint64, bool) { return "authority", 1, true }
func (d *fakeCluster) AuthorityChanged() <-chan struct{} { return d.never }
func (d *fakeCluster) LoadBody(context.Context, job.Position, job.ID) ([]byte, error) {
	return nil, agent.ErrBodyLost
}
func (d *fakeCluster) StoreBlob(context.Context, string, []byte) (job.Blob, error) {
	return job.Blob{}, agent.ErrBodyLost
}
func (d *fakeCluster) Heartbeat(context.Context, string, job.Heartbeat) (job.HeartbeatAck, error) {
	return job.HeartbeatAck{Epoch: 1, Lease: time.Hour}, nil
}

func (d *fakeCluster) Report(_ context.Context, _ string, r job.Report) (job.ReportAck, error) {
	now := time.Now()
	for _, o := range r.Offers {
		if o.Free > 0 {
			select {
			case d.offers <- o:
			default: // not the first
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range r.Outcomes {
		o := &r.Outcomes[i]
		handled, err := stampOf(o.Result.Data)
		if err != nil || o.Status != job.Success {
			d.fault = fmt.Errorf("%s %v: %w", o.Status, o.Fault, err)
		} else {
			d.legs.add(d.began[o.Job], handled, now)
		}
		delete(d.began, o.Job)
		d.ended.Add(1)
	}
	return job.ReportAck{Epoch: 1, Settled: make([]job.Settled, len(r.Outcomes))}, nil
}

// silentAgent is an agent that drops the logs of jobs.
type silentAgent struct{ *agent.Agent }

func (silentAgent) Log(job.LogLine) {}

// agentLatencies measures the latencies of requests through an agent and a pool.
func agentLatencies(t *task, program string, rate int, d time.Duration) latencies {
	quiet := slog.New(slog.DiscardHandler)
	dk := &fakeCluster{never: make(chan struct{}), offers: make(chan job.Offer, 1), began: make(map[job.ID]time.Time)}
	a := agent.New(agent.Config{Node: "bench"}, dk, quiet)
	pools := runnerpool.New(runnerpool.Config{Runners: map[string]runnerpool.RunnerConfig{"bench": {
		Cmd: stampCommand(program, ""), SocketVia: runnerpool.SocketEnv, PoolSize: 1, MaxInFlight: sideSlots,
	}}}, "bench", silentAgent{a}, quiet)
	a.AddTarget(pools)
	running, stop := context.WithCancel(t)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stop()
	faults := make([]error, 2)
	parts.Go(func() { faults[0] = a.Run(running) })
	parts.Go(func() { faults[1] = pools.Run(running) })
	dk.measure(t, a, rate, d)
	stop()
	parts.Wait()
	must.Do(errors.Join(dk.fault, faults[0], faults[1]))
	return dk.legs
}

// measure assigns jobs when they are due, and waits for their outcomes.
func (d *fakeCluster) measure(t *task, a *agent.Agent, rate int, length time.Duration) {
	var offer job.Offer
	select {
	case offer = <-d.offers:
	case <-time.After(waitTimeout):
		must.Do(fmt.Errorf("no runner was ready within %v", waitTimeout))
	case <-t.Done():
		must.Do(t.Err())
	}
	body := jobBody("bench#noop", 0)
	assigned, refused := 0, 0
	paced(t, rate, length, func(i int) {
		assigned++
		var id job.ID
		binary.BigEndian.PutUint64(id[8:], uint64(i)+1)
		assignment := job.Assignment{Job: id, N: 1, Attempt: 1, Queue: queueRRQ, Function: "bench#noop", Kind: offer.Kind, Key: offer.Key,
			Worker: offer.Worker, Fence: uint64(i), Timeout: 5 * time.Minute, Accepted: time.Now(), Body: body}
		began := time.Now()
		d.mu.Lock()
		d.began[id] = began
		d.mu.Unlock()
		if got := a.Assign(job.AssignmentBatch{Epoch: 1, Number: uint64(i) + 1, Assignments: []job.Assignment{assignment}}); got[0] != job.Taken {
			refused++
		}
	})
	if refused > 0 {
		must.Do(fmt.Errorf("%d of %d assignments found no free slot: the machine is too busy for %d/s", refused, assigned, rate))
	}
	must.Do(until(t, waitTimeout, func() bool { return d.ended.Load() == int64(assigned) }))
}
