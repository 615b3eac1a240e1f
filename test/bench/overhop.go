package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
)

// The clients of the Overhop figures. A limit equal to the workers' capacity is
// counted for every job and delays none.
const (
	overhopClients  = 64
	pipelined       = 32 // concurrent ENQUEUEs on each connection
	creditsEach     = 64
	limitAtCapacity = overhopClients * creditsEach
)

var manyWorkers = workerPlan{overhopClients, creditsEach}

// part returns the experiment of one figure of a shared measurement.
type part[T any] func(pick func(T) round) func(context.Context) (round, error)

// shared lets several figures share one measurement. The first figure that runs in a
// round makes the measurement.
func shared[T any](measure func(context.Context) (T, error)) part[T] {
	var taken []T
	return func(pick func(T) round) func(context.Context) (round, error) {
		next := 0
		return func(ctx context.Context) (round, error) {
			if next == len(taken) {
				t, err := measure(ctx)
				if err != nil {
					return round{}, err
				}
				taken = append(taken, t)
			}
			next++
			return pick(taken[next-1]), nil
		}
	}
}

// echoSuite measures a bare TCP echo.
func (b *bench) echoSuite() suite {
	var e *echoPeer
	trips := func(n int) func(context.Context) (round, error) {
		return func(ctx context.Context) (round, error) {
			return pingPong(ctx, n, b.Round/2, func() time.Duration { return cpuOf(e.Process) }, e.dial)
		}
	}
	return suite{
		name: "echo",
		open: func(ctx context.Context, dir string) (closer func(), err error) {
			if e, err = startEcho(ctx, b.self, dir); err != nil {
				return nil, err
			}
			return e.stop, nil
		},
		names: []experiment{
			{name: "floor.echo.alone", unit: "trips/s", run: trips(1), note: "the same number of bytes as PING and PONG"},
			{name: "floor.echo.sync64", unit: "trips/s", run: trips(overhopClients), note: "64 connections"},
		},
	}
}

// overhopCluster is a cluster of three nodes with connections to enqueue over.
type overhopCluster struct {
	*benchCluster
	conns   overhopConns
	limited int // number of pairs measured
}

// overhopSuite measures requests and jobs over the Overhop protocol.
func (b *bench) overhopSuite() suite {
	cl := &overhopCluster{}
	open := b.openCluster(procs.Options{Nodes: 3}, &cl.benchCluster)
	trips := func(n int) func(context.Context) (round, error) {
		return func(ctx context.Context) (round, error) {
			dial := func(ctx context.Context) (*wire, error) { return dialWorker(ctx, cl.Nodes[0].Edge) }
			return pingPong(ctx, n, b.Round/2, func() time.Duration { return cpuOf(cl.Nodes[0].Process) }, dial)
		}
	}
	start := func(rate int) func(context.Context) (round, error) {
		return func(ctx context.Context) (round, error) {
			return cl.runBy(ctx, manyWorkers, queuePlain, cl.enqueueLoad(queuePlain), true, b.open(rate))
		}
	}
	backlog := shared(func(ctx context.Context) (backlogRates, error) { return cl.enqueue(ctx, b.piped) })
	pair := shared(func(ctx context.Context) (limitPair, error) { return cl.limitPair(ctx, b.piped) })
	return suite{
		name: "overhop",
		open: func(ctx context.Context, dir string) (func(), error) {
			closer, err := open(ctx, dir)
			if err != nil {
				return nil, err
			}
			if cl.conns, err = openOverhopConns(ctx, cl.Nodes, overhopClients); err != nil {
				closer()
				return nil, err
			}
			return func() { cl.conns.close(); closer() }, nil
		},
		names: []experiment{
			{name: "overhop.ping.alone", unit: "trips/s", run: trips(1), target: target{floor: "floor.echo.alone"},
				note: "one connection, one request at a time"},
			{name: "overhop.ping.sync64", unit: "trips/s", run: trips(overhopClients), target: target{floor: "floor.echo.sync64"},
				note: "64 connections to one node, one request at a time on each"},
			{name: "overhop.enqueue.sync64", unit: jobsPerSecond, target: target{floor: "floor.stream.sync64"},
				run: func(ctx context.Context) (round, error) {
					in, err := cl.enqueue(ctx, b.sync)
					return in.accepted, err
				}, note: "accepted, not run yet; 64 connections, one ENQUEUE at a time on each"},
			{name: "overhop.enqueue.flight32", unit: jobsPerSecond, target: target{floor: "floor.stream.flight2048"},
				run: backlog(func(in backlogRates) round { return in.accepted }), note: "the same with 32 concurrent ENQUEUEs on each"},
			{name: "overhop.drain", unit: jobsPerSecond, target: target{floor: "floor.queue.async"},
				run: backlog(func(in backlogRates) round { return in.drained }), note: "QUEST to DONE of these jobs, by 64 workers that connect afterwards; the floor publishes at the same time"},
			{name: "overhop.jobs", unit: jobsPerSecond, target: target{floor: "floor.queue.async"},
				run: pair(func(p limitPair) round { return p.without }), note: "ENQUEUE to DONE, 64 connections and 64 workers at three nodes"},
			{name: "overhop.limit", unit: jobsPerSecond, target: target{floor: "overhop.jobs", ratio: 0.95},
				run: pair(func(p limitPair) round { return p.with }), note: fmt.Sprintf("measured alternately with it, with a concurrency_limit of %d, the workers' total credits", limitAtCapacity)},
			{name: "overhop.start500", unit: milliseconds, run: start(500), target: target{floor: "floor.queue.start500"},
				note: "from the due time of the ENQUEUE to the QUEST at a worker, open loop, at 500 jobs/s"},
			{name: "overhop.start2000", unit: milliseconds, run: start(2000), target: target{floor: "floor.queue.start2000"},
				note: "the same at 2000 jobs/s"},
		},
	}
}

// piped enqueues jobs with the maximum concurrency of all connections.
func (b *bench) piped(ctx context.Context, l *load) error {
	return l.async(ctx, b.asyncJobs(), overhopClients*pipelined)
}

// enqueueLoad returns a load over the Overhop connections.
func (cl *overhopCluster) enqueueLoad(queue string) *load {
	return &load{transports: cl.conns.entries(), subject: queue}
}

// backlogRates are the rates at which a backlog was accepted and then run.
type backlogRates struct{ accepted, drained round }

// enqueue measures acceptance while the queue has no workers, and then how fast
// workers run the backlog.
func (cl *overhopCluster) enqueue(ctx context.Context, generate func(context.Context, *load) error) (in backlogRates, err error) {
	if err := cl.awaitCapacity(ctx, 0); err != nil { // until the workers of the last round are gone
		return in, err
	}
	before, err := cl.delivered(ctx)
	if err != nil {
		return in, err
	}
	l := cl.enqueueLoad(queuePlain)
	m := startMeter(cl.cpu)
	l.begin()
	if err := l.run(ctx, generate); err != nil {
		return in, err
	}
	accepted := int(l.accepted.Load())
	in.accepted = m.end(round{value: l.acceptRate(), jobs: accepted})
	m, began := startMeter(cl.cpu), time.Now()
	h, err := startWorkers(ctx, cl.Nodes, manyWorkers, queuePlain, l)
	if err != nil {
		return in, err
	}
	defer h.close()
	if err := l.awaitEnds(ctx); err != nil {
		return in, err
	}
	settled := int(l.settled.Load())
	in.accepted.settled = settled
	in.drained = m.end(round{value: float64(settled) / l.endedAt().Sub(began).Seconds(), jobs: accepted, settled: settled})
	return in, cl.verify(ctx, before, l)
}

// limitPair is the result of the same load without and with a limit.
type limitPair struct{ without, with round }

// limitPair measures both loads, in alternating order, so that a change of the
// machine's speed is not attributed to the limit.
func (cl *overhopCluster) limitPair(ctx context.Context, generate func(context.Context, *load) error) (p limitPair, err error) {
	order := []string{queuePlain, queueAtCapacity}
	if cl.limited%2 == 1 {
		order = []string{queueAtCapacity, queuePlain}
	}
	cl.limited++
	for _, queue := range order {
		r, err := cl.runBy(ctx, manyWorkers, queue, cl.enqueueLoad(queue), false, generate)
		if err != nil {
			return p, err
		}
		if queue == queuePlain {
			p.without = r
		} else {
			p.with = r
		}
	}
	return p, nil
}

// idleSuite measures the cost of idle workers.
func (b *bench) idleSuite() suite {
	var dir string
	cost := shared(func(ctx context.Context) (idleCost, error) { return b.measureIdle(ctx, dir) })
	return suite{
		name: "idle", open: func(_ context.Context, d string) (func(), error) { dir = d; return func() {}, nil },
		names: []experiment{
			{name: "overhop.idle.resident", unit: "KiB/worker", target: target{atMost: 24}, note: fmt.Sprintf("growth of VmRSS by %d registered workers with a credit each", idleWorkers),
				run: cost(func(c idleCost) round { return round{value: c.residentKiB} })},
			{name: "overhop.idle.inuse", unit: "KiB/worker", target: target{atMost: 24}, note: "the same of Go's heap and stacks after a collection",
				run: cost(func(c idleCost) round { return round{value: c.inUseKiB} })},
			{name: "overhop.idle.files", unit: "descriptors/worker",
				run: cost(func(c idleCost) round { return round{value: c.files} })},
		},
	}
}

// rejoinSuite measures the effects of the death of a node with many idle workers.
func (b *bench) rejoinSuite() suite {
	var dir string
	die := func(d victimKind) part[rejoined] {
		return shared(func(ctx context.Context) (rejoined, error) { return b.measureRejoin(ctx, dir, d) })
	}
	alone, crowd, member := die(victimKind{authority: true}), die(victimKind{true, idleWorkers}), die(victimKind{false, idleWorkers})
	start := func(r rejoined) round { return r.meanwhile }
	return suite{
		name: "rejoin", open: func(_ context.Context, d string) (func(), error) { dir = d; return func() {}, nil },
		names: []experiment{
			{name: "overhop.death.start", unit: milliseconds, run: alone(start),
				note: fmt.Sprintf("%d jobs/s, due within %v after the authority's death; no idle workers", rejoinRate, rejoinWindow)},
			{name: "overhop.rejoin.before", unit: milliseconds, run: crowd(func(r rejoined) round { return r.before }),
				note: fmt.Sprintf("%d jobs/s with %d idle workers connected", rejoinRate, idleWorkers)},
			{name: "overhop.rejoin.start", unit: milliseconds, run: crowd(start),
				note: "as overhop.death.start, while the idle workers reconnect to the other nodes"},
			{name: "overhop.rejoin.95", unit: milliseconds, run: crowd(func(r rejoined) round { return round{value: ms(r.most)} }),
				note: "from that death until 95 % of them are subscribed again"},
			{name: "overhop.rejoin.all", unit: milliseconds, run: crowd(func(r rejoined) round { return round{value: ms(r.all)} }),
				note: "until all are"},
			{name: "overhop.rejoin.member", unit: milliseconds, run: member(start),
				note: "as overhop.rejoin.start, of a node that is not the authority"},
		},
	}
}

// ms returns d in milliseconds.
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
