package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"yardmaster/agent"
	"yardmaster/job"
	"yardmaster/runnerpool"
)

// What a node itself adds to a request is measured in this process: an agent
// and a pool as in a node, between an authority that answers at once and a real
// runner process. A bare wire to such a runner is the floor.

// sideSlots is the room of the one runner there.
const sideSlots = 64

// legs are one request's way at the node, or over a bare wire: until its
// handler began, and from then until its outcome was on its way to the
// authority, or read.
type legs struct{ there, back []float64 } // µs

func (g *legs) add(began, handled, ended time.Time) {
	g.there = append(g.there, float64(handled.Sub(began))/1e3)
	g.back = append(g.back, float64(ended.Sub(handled))/1e3)
}

func (g *legs) rounds() (there, back round) {
	n := len(g.there)
	return round{value: quantile(g.there, 0.5), p99: quantile(g.there, 0.99), jobs: n, settled: n},
		round{value: quantile(g.back, 0.5), p99: quantile(g.back, 0.99), jobs: n, settled: n}
}

// stampOf reads a stampRunner's result.
func stampOf(result []byte) (time.Time, error) {
	ns, err := strconv.ParseInt(string(result), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("the runner's result %.40q is no time: %w", result, err)
	}
	return time.Unix(0, ns), nil
}

// paced calls do for each due time, never before it, at a rate for a time.
func paced(ctx context.Context, rate int, d time.Duration, do func(i int)) error {
	step, began := time.Second/time.Duration(rate), time.Now()
	for i := 0; ; i++ {
		due := time.Duration(i) * step
		if due >= d {
			return nil
		}
		if err := pauseUntil(ctx, began.Add(due)); err != nil {
			return err
		}
		do(i)
	}
}

func pauseUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bareLegs measures requests over bare lock-step connections, each made when it
// is due.
func bareLegs(ctx context.Context, dir, program string, rate int, d time.Duration) (g legs, err error) {
	p, err := startRunners(ctx, dir, stampCommand(program, ""), 1)
	if err != nil {
		return g, err
	}
	defer p.stop()
	w, err := dialRunners(ctx, p, sideSlots)
	if err != nil {
		return g, err
	}
	defer w.close()
	idle := make(chan int, sideSlots)
	for i := range sideSlots {
		idle <- i
	}
	var mu sync.Mutex
	var fault error
	var calls sync.WaitGroup
	err = paced(ctx, rate, d, func(int) {
		i := <-idle
		calls.Go(func() {
			began := time.Now()
			result, err := w.call(ctx, i, "echo", 0)
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
	return g, firstOf(err, fault)
}

// desk is an authority that answers at once. It takes the time of each outcome.
type desk struct {
	never chan struct{}
	room  chan job.Offer // the first room there was

	mu    sync.Mutex
	began map[job.ID]time.Time
	legs  legs
	fault error
	ended atomic.Int64
}

func (d *desk) Authority() (string, uint64, bool) { return "desk", 1, true }
func (d *desk) AuthorityChanged() <-chan struct{} { return d.never }
func (d *desk) Load(context.Context, job.Position, job.ID) ([]byte, error) {
	return nil, agent.ErrBodyLost
}
func (d *desk) StoreBlob(context.Context, string, []byte) (job.Blob, error) {
	return job.Blob{}, agent.ErrBodyLost
}
func (d *desk) Beat(context.Context, string, job.Beat) (job.BeatAck, error) {
	return job.BeatAck{Epoch: 1, Lease: time.Hour}, nil
}

func (d *desk) Report(_ context.Context, _ string, r job.Report) (job.ReportAck, error) {
	now := time.Now()
	for _, o := range r.Offers {
		if o.Free > 0 {
			select {
			case d.room <- o:
			default: // known already
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

// deafAgent is an agent at a node that keeps no logs.
type deafAgent struct{ *agent.Agent }

func (deafAgent) Log(job.LogLine) {}

// sideLegs measures the same requests through an agent and a pool.
func sideLegs(ctx context.Context, program string, rate int, d time.Duration) (legs, error) {
	quiet := slog.New(slog.DiscardHandler)
	dk := &desk{never: make(chan struct{}), room: make(chan job.Offer, 1), began: make(map[job.ID]time.Time)}
	a := agent.New(agent.Config{Node: "bench"}, dk, quiet)
	pools := runnerpool.New(runnerpool.Config{Runners: map[string]runnerpool.RunnerConfig{"bench": {
		Cmd: stampCommand(program, ""), SocketVia: runnerpool.SocketEnv, PoolSize: 1, MaxInFlight: sideSlots,
	}}}, "bench", deafAgent{a}, quiet)
	a.Add(pools)
	running, stop := context.WithCancel(ctx)
	var parts sync.WaitGroup
	faults := make([]error, 2)
	parts.Go(func() { faults[0] = a.Run(running) })
	parts.Go(func() { faults[1] = pools.Run(running) })
	err := dk.measure(ctx, a, rate, d)
	stop()
	parts.Wait()
	return dk.legs, firstOf(err, dk.fault, faults[0], faults[1])
}

// measure gives orders when they are due, and waits for their outcomes.
func (d *desk) measure(ctx context.Context, a *agent.Agent, rate int, length time.Duration) error {
	var room job.Offer
	select {
	case room = <-d.room:
	case <-time.After(patience):
		return fmt.Errorf("no runner was up within %v", patience)
	case <-ctx.Done():
		return ctx.Err()
	}
	body := jobBody("bench#noop", 0)
	orders, refused := 0, 0
	err := paced(ctx, rate, length, func(i int) {
		orders++
		var id job.ID
		binary.BigEndian.PutUint64(id[8:], uint64(i)+1)
		order := job.Assignment{Job: id, N: 1, Attempt: 1, Queue: queueRRQ, Function: "bench#noop", Kind: room.Kind, Key: room.Key,
			Worker: room.Worker, Fence: uint64(i), Timeout: 5 * time.Minute, Accepted: time.Now(), Body: body}
		began := time.Now()
		d.mu.Lock()
		d.began[id] = began
		d.mu.Unlock()
		if got := a.Assign(job.Batch{Epoch: 1, Number: uint64(i) + 1, Assignments: []job.Assignment{order}}); got[0] != job.Taken {
			refused++
		}
	})
	if err == nil && refused > 0 {
		err = fmt.Errorf("%d of %d orders found no room: the machine is too busy for %d/s", refused, orders, rate)
	}
	if err != nil {
		return err
	}
	return until(ctx, patience, func() bool { return d.ended.Load() == int64(orders) })
}
