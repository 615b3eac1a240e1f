package bench

import (
	"context"
	"fmt"
	"time"

	"yardmaster/drill/yard"
)

// Clients of the Overhop figures. A limit as high as the workers' room is
// counted at every job and holds none back.
const (
	overhopClients = 64
	flight         = 32 // ENQUEUEs under way on each connection
	creditsEach    = 64
	limitOfRoom    = overhopClients * creditsEach
)

var many = staff{overhopClients, creditsEach}

// part gives one figure of a measurement that several share.
type part[T any] func(pick func(T) round) func(context.Context) (round, error)

// shared lets several figures be parts of one measurement: whoever asks first
// in a round has it made.
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

func (b *bench) echoSuite() suite {
	var e *echoPeer
	trips := func(n int) func(context.Context) (round, error) {
		return func(ctx context.Context) (round, error) {
			return pingPong(ctx, n, b.Round/2, func() time.Duration { return e.CPU() }, e.dial)
		}
	}
	return suite{
		name: "echo",
		open: func(ctx context.Context, dir string) (closer func(), err error) {
			if e, err = startEcho(ctx, b.Binary, dir); err != nil {
				return nil, err
			}
			return e.stop, nil
		},
		names: []experiment{
			{name: "floor.echo.alone", unit: "trips/s", run: trips(1), note: "as many bytes as PING and PONG have"},
			{name: "floor.echo.sync64", unit: "trips/s", run: trips(overhopClients), note: "64 connections"},
		},
	}
}

// overhopYard is a yard of three with connections to enqueue through.
type overhopYard struct {
	*yards
	doors   doors
	limited int // pairs measured
}

func (b *bench) overhopSuite() suite {
	y := &overhopYard{}
	open := b.openYard(yard.Options{Nodes: 3}, &y.yards)
	trips := func(n int) func(context.Context) (round, error) {
		return func(ctx context.Context) (round, error) {
			dial := func(ctx context.Context) (*wire, error) { return dialWorker(ctx, y.Nodes[0].Edge) }
			return pingPong(ctx, n, b.Round/2, y.Nodes[0].CPU, dial)
		}
	}
	start := func(rate int) func(context.Context) (round, error) {
		return func(ctx context.Context) (round, error) {
			return y.runBy(ctx, many, queuePlain, y.enqueueLoad(queuePlain), true, b.open(rate))
		}
	}
	backlog := shared(func(ctx context.Context) (intake, error) { return y.enqueue(ctx, b.piped) })
	pair := shared(func(ctx context.Context) (limitPair, error) { return y.limitPair(ctx, b.piped) })
	return suite{
		name: "overhop",
		open: func(ctx context.Context, dir string) (func(), error) {
			closer, err := open(ctx, dir)
			if err != nil {
				return nil, err
			}
			if y.doors, err = openDoors(ctx, y.Nodes, overhopClients); err != nil {
				closer()
				return nil, err
			}
			return func() { y.doors.close(); closer() }, nil
		},
		names: []experiment{
			{name: "overhop.ping.alone", unit: "trips/s", run: trips(1), target: target{floor: "floor.echo.alone"},
				note: "one connection, in lock-step"},
			{name: "overhop.ping.sync64", unit: "trips/s", run: trips(overhopClients), target: target{floor: "floor.echo.sync64"},
				note: "64 connections to one node, each in lock-step"},
			{name: "overhop.enqueue.sync64", unit: jobsPerSecond, target: target{floor: "floor.stream.sync64"},
				run: func(ctx context.Context) (round, error) {
					in, err := y.enqueue(ctx, b.sync)
					return in.accepted, err
				}, note: "accepted, not run yet; 64 connections, one ENQUEUE under way on each"},
			{name: "overhop.enqueue.flight32", unit: jobsPerSecond, target: target{floor: "floor.stream.flight2048"},
				run: backlog(func(in intake) round { return in.accepted }), note: "the same with 32 under way on each"},
			{name: "overhop.drain", unit: jobsPerSecond, target: target{floor: "floor.queue.async"},
				run: backlog(func(in intake) round { return in.drained }), note: "QUEST to DONE of what was just accepted, by 64 workers that come then; the floor publishes beside"},
			{name: "overhop.jobs", unit: jobsPerSecond, target: target{floor: "floor.queue.async"},
				run: pair(func(p limitPair) round { return p.without }), note: "ENQUEUE to DONE, 64 connections and 64 workers at three nodes"},
			{name: "overhop.limit", unit: jobsPerSecond, target: target{floor: "overhop.jobs", ratio: 0.95},
				run: pair(func(p limitPair) round { return p.with }), note: fmt.Sprintf("the same in turn with it, with a concurrency_limit of %d, all the workers' credits", limitOfRoom)},
			{name: "overhop.start500", unit: milliseconds, run: start(500), target: target{floor: "floor.queue.start500"},
				note: "ENQUEUE due to QUEST at a worker, open loop, at 500 jobs/s"},
			{name: "overhop.start2000", unit: milliseconds, run: start(2000), target: target{floor: "floor.queue.start2000"},
				note: "the same at 2000 jobs/s"},
		},
	}
}

// piped hands jobs in over all doors, as many under way as they take together.
func (b *bench) piped(ctx context.Context, l *load) error {
	return l.async(ctx, b.asyncJobs(), overhopClients*flight)
}

// enqueueLoad is a round over the doors.
func (y *overhopYard) enqueueLoad(queue string) *load {
	return &load{entries: y.doors.entries(), subject: queue}
}

// intake is a backlog: how fast it was accepted, and then run.
type intake struct{ accepted, drained round }

// enqueue measures acceptance alone, while the queue has no workers, and then
// lets them run what was accepted.
func (y *overhopYard) enqueue(ctx context.Context, hand func(context.Context, *load) error) (in intake, err error) {
	if err := y.awaitRoom(ctx, 0); err != nil { // the last round's workers are gone
		return in, err
	}
	before, err := y.delivered(ctx)
	if err != nil {
		return in, err
	}
	l := y.enqueueLoad(queuePlain)
	m := startMeter(y.CPU)
	l.begin()
	if err := l.run(ctx, hand); err != nil {
		return in, err
	}
	accepted := int(l.accepted.Load())
	in.accepted = m.end(round{value: l.acceptRate(), jobs: accepted})
	m, began := startMeter(y.CPU), time.Now()
	h, err := openHands(ctx, y.Nodes, many, queuePlain, l)
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
	return in, y.verify(ctx, before, l)
}

// limitPair is one load without a limit and with one.
type limitPair struct{ without, with round }

// limitPair measures the two in turn, and which comes first changes with every
// pair: a machine that grows faster or slower is not taken for a limit's cost.
func (y *overhopYard) limitPair(ctx context.Context, hand func(context.Context, *load) error) (p limitPair, err error) {
	order := []string{queuePlain, queueRoom}
	if y.limited%2 == 1 {
		order = []string{queueRoom, queuePlain}
	}
	y.limited++
	for _, queue := range order {
		r, err := y.runBy(ctx, many, queue, y.enqueueLoad(queue), false, hand)
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

func (b *bench) rejoinSuite() suite {
	var dir string
	die := func(d death) part[rejoined] {
		return shared(func(ctx context.Context) (rejoined, error) { return b.measureRejoin(ctx, dir, d) })
	}
	alone, crowd, member := die(death{authority: true}), die(death{true, idleWorkers}), die(death{false, idleWorkers})
	start := func(r rejoined) round { return r.meanwhile }
	return suite{
		name: "rejoin", open: func(_ context.Context, d string) (func(), error) { dir = d; return func() {}, nil },
		names: []experiment{
			{name: "overhop.death.start", unit: milliseconds, run: alone(start),
				note: fmt.Sprintf("%d jobs/s, due within %v after the authority's death; no idle workers", rejoinRate, rejoinWindow)},
			{name: "overhop.rejoin.before", unit: milliseconds, run: crowd(func(r rejoined) round { return r.before }),
				note: fmt.Sprintf("%d jobs/s beside %d idle workers", rejoinRate, idleWorkers)},
			{name: "overhop.rejoin.start", unit: milliseconds, run: crowd(start),
				note: "as overhop.death.start, while the idle workers come back to the other nodes"},
			{name: "overhop.rejoin.95", unit: milliseconds, run: crowd(func(r rejoined) round { return round{value: ms(r.most)} }),
				note: "from that death until 95 % of them are subscribed again"},
			{name: "overhop.rejoin.all", unit: milliseconds, run: crowd(func(r rejoined) round { return round{value: ms(r.all)} }),
				note: "until all are"},
			{name: "overhop.rejoin.member", unit: milliseconds, run: member(start),
				note: "as overhop.rejoin.start, of a node that is not the authority"},
		},
	}
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
