package bench

import (
	"context"
	"fmt"
	"os"
)

// The shapes of pools that rates are measured with. Python's are fewer: what
// they cost is the runner's own.
var (
	goShapes     = []shape{{1, 1}, {1, 8}, {1, 64}, {2, 1}, {2, 8}, {2, 64}, {4, 1}, {4, 8}, {4, 64}}
	pythonShapes = []shape{{1, 1}, {2, 8}, {4, 64}}
	sideRates    = []int{200, 1000} // requests/s of the open loops
)

// eachShape names a figure for every shape of both languages.
func eachShape(prefix string, figure func(name string, d dialect, s shape) experiment) (all []experiment) {
	for _, s := range goShapes {
		all = append(all, figure(fmt.Sprintf("%s.%s%s", prefix, golang, s), golang, s))
	}
	for _, s := range pythonShapes {
		all = append(all, figure(fmt.Sprintf("%s.%s%s", prefix, python, s), python, s))
	}
	return all
}

// rrqFloorSuite measures the wire to runners, and nothing of a yard.
func (b *bench) rrqFloorSuite() suite {
	var dir string
	names := eachShape("floor.rrq", func(name string, d dialect, s shape) experiment {
		return experiment{name: name, unit: "requests/s", run: func(ctx context.Context) (round, error) {
			cmd, err := d.command(b.Binary)
			if err != nil {
				return round{}, err
			}
			return b.inRound(dir, func(dir string) (round, error) { return saturate(ctx, dir, cmd, s, b.Round/6) })
		}}
	})
	for _, rate := range sideRates {
		both := shared(func(ctx context.Context) (l legs, err error) {
			_, err = b.inRound(dir, func(dir string) (round, error) {
				l, err = bareLegs(ctx, dir, b.Binary, rate, b.Round/2)
				return round{}, err
			})
			return l, err
		})
		names = append(names, legFigures("floor.rrq", rate, both, "")...)
	}
	return suite{name: "rrqfloor", names: names, open: inDirectory(&dir)}
}

// inRound runs a measurement in a directory of its own below dir.
func (b *bench) inRound(dir string, run func(dir string) (round, error)) (round, error) {
	dir, err := os.MkdirTemp(dir, "round-")
	if err != nil {
		return round{}, fmt.Errorf("make a directory: %w", err)
	}
	return run(dir)
}

// inDirectory is the opening of a suite whose figures start what they need.
func inDirectory(dir *string) func(context.Context, string) (func(), error) {
	return func(_ context.Context, d string) (func(), error) { *dir = d; return func() {}, nil }
}

// legFigures are the two legs of requests at a rate.
func legFigures(prefix string, rate int, both part[legs], floor string) []experiment {
	figure := func(name string, pick func(there, back round) round, note string) experiment {
		e := experiment{name: fmt.Sprintf("%s.%s%d", prefix, name, rate), unit: "µs", note: note,
			run: both(func(l legs) round { return pick(l.rounds()) })}
		if floor != "" {
			e.target.floor = fmt.Sprintf("%s.%s%d", floor, name, rate)
			e.note = note
		}
		return e
	}
	return []experiment{
		figure("there", func(there, _ round) round { return there }, "order at the node, or call on a bare wire, to handler's start; open loop"),
		figure("back", func(_, back round) round { return back }, "handler's start to outcome reported, or answer read"),
	}
}

// rrqSuite measures rates of pools on so many nodes.
func (b *bench) rrqSuite(nodes int) suite {
	y := &rrqYard{}
	prefix := fmt.Sprintf("rrq%d", nodes)
	names := eachShape(prefix, func(name string, d dialect, s shape) experiment {
		floor := fmt.Sprintf("floor.rrq.%s%s", d, s)
		if nodes > 1 {
			floor = "floor.queue.async"
		}
		return experiment{name: name, unit: jobsPerSecond, target: target{floor: floor},
			run: func(ctx context.Context) (round, error) { return y.saturate(ctx, d, s, b.Round/3) }}
	})
	for _, rate := range sideRates {
		names = append(names, experiment{name: fmt.Sprintf("%s.start%d", prefix, rate), unit: milliseconds, target: target{floor: fmt.Sprintf("floor.queue.start%d", rate)},
			run:  func(ctx context.Context) (round, error) { return y.start(ctx, b.open(rate)) },
			note: fmt.Sprintf("enqueue due to handler's start, open loop, at %d jobs/s; a pool of 1x64 on each node", rate)})
	}
	return suite{name: prefix, names: names, open: b.openRRQ(nodes, y)}
}

// rrqLifeSuite measures what a pool costs its node, and how it comes and goes.
func (b *bench) rrqLifeSuite() suite {
	var dir string
	var names []experiment
	for _, rate := range sideRates {
		both := shared(func(ctx context.Context) (legs, error) { return sideLegs(ctx, b.Binary, rate, b.Round/2) })
		names = append(names, legFigures("rrq", rate, both, "floor.rrq")...)
	}
	spawns := shared(func(ctx context.Context) (spawned, error) { return b.measureSpawns(ctx, dir) })
	memory := shared(func(ctx context.Context) (poolMemory, error) { return b.measurePoolMemory(ctx, dir) })
	again := shared(func(ctx context.Context) (recovery, error) { return b.measureRecovery(ctx, dir) })
	of := func(pick func(poolMemory) float64) func(context.Context) (round, error) {
		return memory(func(m poolMemory) round { return round{value: pick(m)} })
	}
	grown := func(name, unit string, pick func(spawned) float64) experiment {
		return experiment{name: "rrq.spawn." + name, unit: unit, once: true, note: fmt.Sprintf("growth of a process that spawned and ended %d runners", spawnCount),
			run: spawns(func(s spawned) round { return round{value: pick(s)} })}
	}
	names = append(names,
		experiment{name: "rrq.spawn", unit: "ms/runner", once: true, note: fmt.Sprintf("fork to listening, %d runners, %d at once", spawnCount, spawnWidth),
			run: spawns(func(s spawned) round { return round{value: s.Took / float64(s.Spawns)} })},
		experiment{name: "rrq.spawn.end", unit: "ms/runner", once: true, note: "SIGTERM to nothing left, the same runners",
			run: spawns(func(s spawned) round { return round{value: s.Ended / float64(s.Spawns)} })},
		grown("resident", "KiB", func(s spawned) float64 { return float64(s.Resident) / 1024 }),
		grown("files", "descriptors", func(s spawned) float64 { return float64(s.Descriptors) }),
		grown("threads", "threads", func(s spawned) float64 { return float64(s.Threads) }),
		grown("goroutines", "goroutines", func(s spawned) float64 { return float64(s.Goroutines) }),
		grown("children", "processes", func(s spawned) float64 { return float64(s.Children) }),
		experiment{name: "rrq.slot.resident", unit: "KiB/slot", once: true, run: of(func(m poolMemory) float64 { return m.idleResident }),
			note: fmt.Sprintf("VmRSS of a node with an idle pool of %s above one without; two processes are compared, so some MiB are noise", wideShape)},
		experiment{name: "rrq.slot.inuse", unit: "KiB/slot", once: true, run: of(func(m poolMemory) float64 { return m.idleInUse }),
			note: "the same of Go's heap and stacks after a collection"},
		experiment{name: "rrq.flight.resident", unit: "KiB/request", once: true, run: of(func(m poolMemory) float64 { return m.busyResident }),
			note: "on top of it with a request in every slot"},
		experiment{name: "rrq.flight.inuse", unit: "KiB/request", once: true, run: of(func(m poolMemory) float64 { return m.busyInUse })},
		experiment{name: "rrq.runner.resident", unit: "KiB/process", once: true, run: of(func(m poolMemory) float64 { return m.runner }),
			note: "VmRSS of each runner process of that pool, with 64 requests in flight: the runner's own, not the node's"},
		experiment{name: "rrq.trip", unit: milliseconds, once: true, run: again(func(r recovery) round { return r.before }),
			note: "enqueue call to news of the end, one node, one at a time"},
		experiment{name: "rrq.recover", unit: milliseconds, once: true, target: target{floor: "rrq.trip"}, run: again(func(r recovery) round { return r.after }),
			note: fmt.Sprintf("the same just after the pool's only process was killed, %d times", kills)},
		experiment{name: "rrq.drain", unit: milliseconds, run: func(ctx context.Context) (round, error) { return b.measureDrain(ctx, dir) },
			note: fmt.Sprintf("SIGTERM to the end of one of three nodes, while each of its slots runs a handler of %v", busyTime)},
	)
	return suite{name: "rrq", names: names, open: inDirectory(&dir)}
}
