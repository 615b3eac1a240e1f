package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// The clients of the Overhop figures. A limit equal to the workers' capacity is
// counted for every job and delays none.
const (
	overhopClients  = 64
	pipelined       = 32 // concurrent ENQUEUEs on each connection
	creditsEach     = 64
	limitAtCapacity = overhopClients * creditsEach
)

// manyWorkers returns the plan of the workers of a queue.
func manyWorkers(queue string) workerPlan {
	return workerPlan{queue: queue, workers: overhopClients, credits: creditsEach}
}

// part returns the experiment of one figure of a shared measurement.
type part[T any] func(pick func(T) round) measurement

// shared lets several figures share one measurement. The first figure that runs in a
// round makes the measurement.
func shared[T any](measure func(*task) T) part[T] {
	var taken []T
	return func(pick func(T) round) measurement {
		next := 0
		return func(t *task) round {
			if next == len(taken) {
				taken = append(taken, measure(t))
			}
			next++
			return pick(taken[next-1])
		}
	}
}

// alternating returns measurements that take turns within each round, in alternating order, so that
// neither always follows the other.
func alternating(a, b measurement) (measurement, measurement) {
	type pair struct{ a, b round }
	rounds := 0
	both := shared(func(t *task) (p pair) {
		if rounds++; rounds%2 == 1 {
			p.a = a(t)
			p.b = b(t)
		} else {
			p.b = b(t)
			p.a = a(t)
		}
		return p
	})
	return both(func(p pair) round { return p.a }), both(func(p pair) round { return p.b })
}

// echoSuite measures a bare TCP echo.
func (b *bench) echoSuite() suite {
	var e *echoPeer
	trips := func(n int) measurement {
		return func(t *task) round {
			return pingPong(t, n, b.Round/2, func() time.Duration { return cpuOf(e.Process) }, e.dial)
		}
	}
	return suite{
		name: "echo",
		open: func(t *task) { e = startEcho(t, b.self) },
		names: []experiment{
			{name: "floor.echo.alone", unit: "trips/s", run: trips(1), note: "the same number of bytes as PING and PONG"},
			{name: "floor.echo.sync64", unit: "trips/s", run: trips(overhopClients), note: "64 connections"},
		},
	}
}

// overhopCluster is a cluster of three nodes with connections to enqueue over.
type overhopCluster struct {
	*benchCluster
	conns []overhopConn
}

// connectOverhop connects to a cluster.
func connectOverhop(t *task, cl *benchCluster) *overhopCluster {
	return &overhopCluster{benchCluster: cl, conns: openOverhopConns(t, cl.Nodes, overhopClients)}
}

// overhopSuite measures requests over the Overhop protocol.
func (b *bench) overhopSuite() suite {
	var cl *overhopCluster
	open := b.startCluster(procs.Options{Nodes: 3})
	trips := func(n int) measurement {
		return func(t *task) round {
			dial := func(ctx context.Context) (*wire, error) { return dialWorker(ctx, cl.Nodes[0].Edge) }
			return pingPong(t, n, b.Round/2, func() time.Duration { return cpuOf(cl.Nodes[0].Process) }, dial)
		}
	}
	backlog := shared(func(t *task) backlogRates { return cl.enqueue(t, b.piped) })
	return suite{
		name: "overhop",
		open: func(t *task) { cl = connectOverhop(t, open(t)) },
		names: []experiment{
			{name: "overhop.ping.alone", unit: "trips/s", run: trips(1), target: target{floor: "floor.echo.alone"},
				note: "one connection, one request at a time"},
			{name: "overhop.ping.sync64", unit: "trips/s", run: trips(overhopClients), target: target{floor: "floor.echo.sync64"},
				note: "64 connections to one node, one request at a time on each"},
			{name: "overhop.enqueue.sync64", unit: jobsPerSecond, target: target{floor: "floor.stream.sync64"},
				run: func(t *task) round { return cl.enqueue(t, b.sync).accepted }, note: "accepted, not run yet; 64 connections, one ENQUEUE at a time on each"},
			{name: "overhop.enqueue.flight32", unit: jobsPerSecond, target: target{floor: "floor.stream.flight2048"},
				run: backlog(func(in backlogRates) round { return in.accepted }), note: "the same with 32 concurrent ENQUEUEs on each"},
			{name: "overhop.drain", unit: jobsPerSecond, target: target{floor: "floor.queue.async"},
				run: backlog(func(in backlogRates) round { return in.drained }), note: "QUEST to DONE of these jobs, by 64 workers that connect afterwards; the floor publishes at the same time"},
		},
	}
}

// piped enqueues jobs with the maximum concurrency of all connections.
func (b *bench) piped(t *task, l *load) {
	l.async(t, b.asyncJobs(), overhopClients*pipelined)
}

// enqueueLoad returns a load over the Overhop connections.
func (cl *overhopCluster) enqueueLoad(queue string) *load {
	return &load{transports: asTransports(cl.conns), subject: queue}
}

// backlogRates are the rates at which a backlog was accepted and then run.
type backlogRates struct{ accepted, drained round }

// enqueue measures a backlog that is enqueued over the Overhop connections.
func (cl *overhopCluster) enqueue(t *task, generate generator) backlogRates {
	return cl.backlog(t, manyWorkers(queuePlain), cl.enqueueLoad(queuePlain), generate)
}

// backlog measures acceptance while the queue has no workers, and then how fast
// workers run the backlog.
func (c *benchCluster) backlog(t *task, plan workerPlan, l *load, generate generator) (in backlogRates) {
	c.awaitCapacity(t, 0) // until the workers of the last round are gone
	before := c.delivered(t)
	m := startMeter(c.cpu)
	l.begin()
	l.run(t, generate)
	accepted := int(l.accepted.Load())
	in.accepted = m.end(round{value: l.acceptRate(), jobs: accepted})
	m, began := startMeter(c.cpu), time.Now()
	h := startWorkers(t, c.Nodes, plan, l)
	defer h.close()
	must.Do(l.awaitEnds(t))
	settled := int(l.settled.Load())
	in.accepted.settled = settled
	in.drained = m.end(round{value: float64(settled) / l.endedAt().Sub(began).Seconds(), jobs: accepted, settled: settled})
	c.verify(t, before, l)
	return in
}

// idleSuite measures the cost of idle workers.
func (b *bench) idleSuite() suite {
	cost := shared(b.measureIdle)
	return suite{
		name: "idle",
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
	die := func(d victimKind) part[rejoined] {
		return shared(func(t *task) rejoined { return b.measureRejoin(t, d) })
	}
	alone, crowd, member := die(victimKind{authority: true}), die(victimKind{true, idleWorkers}), die(victimKind{false, idleWorkers})
	start := func(r rejoined) round { return r.meanwhile }
	return suite{
		name: "rejoin",
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
