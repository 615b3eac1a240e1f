package bench

import (
	"fmt"

	"github.com/yardmaster-dev/yardmaster/test/must"
)

// The shapes of pools whose rates are measured. There are fewer with Python, because
// they measure mostly the runner itself.
var (
	goShapes     = []shape{{1, 1}, {1, 8}, {1, 64}, {2, 1}, {2, 8}, {2, 64}, {4, 1}, {4, 8}, {4, 64}}
	pythonShapes = []shape{{1, 1}, {2, 8}, {4, 64}}
	sideRates    = []int{200, 1000} // requests per second of the open loops
)

// eachShape returns a figure for every shape of both languages.
func eachShape(prefix string, figure func(name string, d dialect, s shape) experiment) (all []experiment) {
	for _, s := range goShapes {
		all = append(all, figure(fmt.Sprintf("%s.%s%s", prefix, golang, s), golang, s))
	}
	for _, s := range pythonShapes {
		all = append(all, figure(fmt.Sprintf("%s.%s%s", prefix, python, s), python, s))
	}
	return all
}

// rrqFloorSuite measures the connection to runners without a node.
func (b *bench) rrqFloorSuite() suite {
	names := eachShape("floor.rrq", func(name string, d dialect, s shape) experiment {
		return experiment{name: name, unit: "requests/s",
			run: func(t *task) round { return saturate(t, must.Get(d.command(b.Binary)), s, b.Round/6) }}
	})
	for _, rate := range sideRates {
		both := shared(func(t *task) latencies { return directLatencies(t, b.self, rate, b.Round/2) })
		names = append(names, latencyFigures("floor.rrq", rate, both, "")...)
	}
	return suite{name: "rrqfloor", names: names}
}

// latencyFigures returns the figures for both legs of requests at a rate.
func latencyFigures(prefix string, rate int, both part[latencies], floor string) []experiment {
	figure := func(name string, pick func(there, back round) round, note string) experiment {
		e := experiment{name: fmt.Sprintf("%s.%s%d", prefix, name, rate), unit: "µs", note: note,
			run: both(func(l latencies) round { return pick(l.rounds()) })}
		if floor != "" {
			e.target.floor = fmt.Sprintf("%s.%s%d", floor, name, rate)
		}
		return e
	}
	return []experiment{
		figure("there", func(there, _ round) round { return there }, "from the assignment at the node, or the call on a bare connection, to the handler's start; open loop"),
		figure("back", func(_, back round) round { return back }, "from the handler's start until the outcome is reported, or the answer read"),
	}
}

// rrqSuite measures the rates of pools in a cluster of this number of nodes.
func (b *bench) rrqSuite(nodes int) suite {
	cl := &rrqCluster{}
	prefix := fmt.Sprintf("rrq%d", nodes)
	names := eachShape(prefix, func(name string, d dialect, s shape) experiment {
		floor := fmt.Sprintf("floor.rrq.%s%s", d, s)
		if nodes > 1 {
			floor = "floor.queue.async"
		}
		return experiment{name: name, unit: jobsPerSecond, target: target{floor: floor},
			run: func(t *task) round { return cl.saturate(t, d, s, b.Round/3) }}
	})
	for _, rate := range sideRates {
		names = append(names, experiment{name: fmt.Sprintf("%s.start%d", prefix, rate), unit: milliseconds, target: target{floor: fmt.Sprintf("floor.queue.start%d", rate)},
			run:  func(t *task) round { return cl.start(t, b.open(rate)) },
			note: fmt.Sprintf("from the due time of the enqueue to the handler's start, open loop, at %d jobs/s; a pool of 1x64 on each node", rate)})
	}
	return suite{name: prefix, names: names, open: b.openRRQ(nodes, cl)}
}

// rrqLifeSuite measures the cost, the start and the end of pools.
func (b *bench) rrqLifeSuite() suite {
	var names []experiment
	for _, rate := range sideRates {
		both := shared(func(t *task) latencies { return agentLatencies(t, b.self, rate, b.Round/2) })
		names = append(names, latencyFigures("rrq", rate, both, "floor.rrq")...)
	}
	spawns := shared(b.measureSpawns)
	memory := shared(b.measurePoolMemory)
	again := shared(b.measureRecovery)
	of := func(pick func(poolMemory) float64) measurement {
		return memory(func(m poolMemory) round { return round{value: pick(m)} })
	}
	grown := func(name, unit string, pick func(spawned) float64) experiment {
		return experiment{name: "rrq.spawn." + name, unit: unit, once: true, note: fmt.Sprintf("growth of a process that spawned and ended %d runners", spawnCount),
			run: spawns(func(s spawned) round { return round{value: pick(s)} })}
	}
	names = append(names,
		experiment{name: "rrq.spawn", unit: "ms/runner", once: true, note: fmt.Sprintf("from fork to listening, %d runners, %d at a time", spawnCount, spawnWidth),
			run: spawns(func(s spawned) round { return round{value: s.Took / float64(s.Spawns)} })},
		experiment{name: "rrq.spawn.end", unit: "ms/runner", once: true, note: "from SIGTERM until all are gone, the same runners",
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
			note: "the growth with a request in every slot"},
		experiment{name: "rrq.flight.inuse", unit: "KiB/request", once: true, run: of(func(m poolMemory) float64 { return m.busyInUse })},
		experiment{name: "rrq.runner.resident", unit: "KiB/process", once: true, run: of(func(m poolMemory) float64 { return m.runner }),
			note: "VmRSS of each runner process of that pool, with 64 requests in flight: memory of the runner, not of the node"},
		experiment{name: "rrq.trip", unit: milliseconds, once: true, run: again(func(r recovery) round { return r.before }),
			note: "from the enqueue call to the notification of the end, one node, one job at a time"},
		experiment{name: "rrq.recover", unit: milliseconds, once: true, target: target{floor: "rrq.trip"}, run: again(func(r recovery) round { return r.after }),
			note: fmt.Sprintf("the same just after the pool's only process was killed, %d times", kills)},
		experiment{name: "rrq.drain", unit: milliseconds, run: b.measureDrain,
			note: fmt.Sprintf("from SIGTERM to the exit of one of three nodes, while each of its slots runs a handler of %v", busyTime)},
	)
	return suite{name: "rrq", names: names}
}
