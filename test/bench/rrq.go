package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
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
		return experiment{name: "rrq.spawn." + name, unit: unit, rounds: 1, note: fmt.Sprintf("growth of a process that spawned and ended %d runners", spawnCount),
			run: spawns(func(s spawned) round { return round{value: pick(s)} })}
	}
	names = append(names,
		experiment{name: "rrq.spawn", unit: "ms/runner", rounds: 1, note: fmt.Sprintf("from fork to listening, %d runners, %d at a time", spawnCount, spawnWidth),
			run: spawns(func(s spawned) round { return round{value: s.Took / float64(s.Spawns)} })},
		experiment{name: "rrq.spawn.end", unit: "ms/runner", rounds: 1, note: "from SIGTERM until all are gone, the same runners",
			run: spawns(func(s spawned) round { return round{value: s.Ended / float64(s.Spawns)} })},
		grown("resident", "KiB", func(s spawned) float64 { return float64(s.Resident) / 1024 }),
		grown("files", "descriptors", func(s spawned) float64 { return float64(s.Descriptors) }),
		grown("threads", "threads", func(s spawned) float64 { return float64(s.Threads) }),
		grown("goroutines", "goroutines", func(s spawned) float64 { return float64(s.Goroutines) }),
		grown("children", "processes", func(s spawned) float64 { return float64(s.Children) }),
		experiment{name: "rrq.slot.resident", unit: "KiB/slot", rounds: 1, run: of(func(m poolMemory) float64 { return m.idleResident }),
			note: fmt.Sprintf("VmRSS of a node with an idle pool of %s above one without; two processes are compared, so some MiB are noise", wideShape)},
		experiment{name: "rrq.slot.inuse", unit: "KiB/slot", rounds: 1, run: of(func(m poolMemory) float64 { return m.idleInUse }),
			note: "the same of Go's heap and stacks after a collection"},
		experiment{name: "rrq.flight.resident", unit: "KiB/request", rounds: 1, run: of(func(m poolMemory) float64 { return m.busyResident }),
			note: "the growth with a request in every slot"},
		experiment{name: "rrq.flight.inuse", unit: "KiB/request", rounds: 1, run: of(func(m poolMemory) float64 { return m.busyInUse })},
		experiment{name: "rrq.runner.resident", unit: "KiB/process", rounds: 1, run: of(func(m poolMemory) float64 { return m.runner }),
			note: "VmRSS of each runner process of that pool, with 64 requests in flight: memory of the runner, not of the node"},
		experiment{name: "rrq.trip", unit: milliseconds, rounds: 1, run: again(func(r recovery) round { return r.before }),
			note: "from the enqueue call to the notification of the end, one node, one job at a time"},
		experiment{name: "rrq.recover", unit: milliseconds, rounds: 1, target: target{floor: "rrq.trip"}, run: again(func(r recovery) round { return r.after }),
			note: fmt.Sprintf("the same just after the pool's only process was killed, %d times", kills)},
		experiment{name: "rrq.drain", unit: milliseconds, run: b.measureDrain,
			note: fmt.Sprintf("from SIGTERM to the exit of one of three nodes, while each of its slots runs a handler of %v", busyTime)},
	)
	return suite{name: "rrq", names: names}
}

// stamps is the name of the pool of stamping runners, with which latencies are
// measured.
const stamps = "stamps"

// pool returns the name of the pool of a shape.
func (d dialect) pool(s shape) string { return string(d) + "-" + s.String() }

// rrqCluster is a cluster whose nodes have a pool of every shape.
type rrqCluster struct {
	*benchCluster
	starts string             // file that stamping runners write to
	rates  map[string]float64 // last measured jobs/s, by function
	absent map[dialect]error  // why there are no pools of a language
}

// openRRQ returns a function that starts such a cluster. Idle pools do not affect the
// measurements.
func (b *bench) openRRQ(nodes int, cl *rrqCluster) func(*task) {
	return func(t *task) {
		*cl = rrqCluster{starts: filepath.Join(t.dir, "starts"), rates: make(map[string]float64), absent: make(map[dialect]error)}
		pools := poolConfig(stamps, stampCommand(b.self, cl.starts), shape{1, 64})
		for d, shapes := range map[dialect][]shape{golang: goShapes, python: pythonShapes} {
			cmd, err := d.command(b.Binary)
			if err != nil {
				cl.absent[d] = err
				continue
			}
			for _, s := range shapes {
				pools += poolConfig(d.pool(s), cmd, s)
			}
		}
		cl.benchCluster = b.startCluster(procs.Options{Nodes: nodes, Config: pools})(t)
	}
}

// poolConfig returns the configuration of a pool.
func poolConfig(name string, cmd []string, s shape) string {
	var words []string
	for _, word := range cmd {
		words = append(words, fmt.Sprintf("%q", word))
	}
	return fmt.Sprintf("[rrq.runners.%s]\ncmd = [%s]\nsocket_via = \"env\"\npool_size = %d\nmax_in_flight = %d\n",
		name, strings.Join(words, ", "), s.processes, s.inFlight)
}

// saturate measures the maximum rate of jobs with a pool of one shape on each node.
func (cl *rrqCluster) saturate(t *task, d dialect, s shape, length time.Duration) round {
	must.Do(cl.absent[d])
	function := d.pool(s) + "#echo"
	if cl.rates[function] == 0 {
		warmUp := cl.rrq(t, enqueued(queueRRQ), function, 50+4*s.slots()*len(cl.Nodes))
		cl.rates[function] = warmUp.value
	}
	r := cl.rrq(t, enqueued(queueRRQ), function, max(100, int(cl.rates[function]*length.Seconds())))
	cl.rates[function] = max(r.value, 1)
	return r
}

// start measures the latency from the due time of the enqueue call to the begin of the
// handler.
func (cl *rrqCluster) start(t *task, generate generator) round {
	if err := os.Truncate(cl.starts, 0); !os.IsNotExist(err) {
		must.Do(err)
	}
	l := cl.newLoad(enqueued(queueRRQ))
	l.function = stamps + "#noop"
	r := cl.runnersEnd(t, l, generate)
	starts := must.Get(readStarts(cl.starts))
	if len(starts) != r.jobs {
		must.Do(fmt.Errorf("the runners started %d of %d jobs", len(starts), r.jobs))
	}
	took := make([]float64, 0, len(starts))
	for due, at := range starts {
		took = append(took, ms(time.Unix(0, at).Sub(l.began)-time.Duration(due)))
	}
	r.value, r.p99, r.accepted = quantile(took, 0.5), quantile(took, 0.99), 0
	return r
}

// rrq measures jobs of a function, enqueued as fast as they are accepted.
func (c *benchCluster) rrq(t *task, w way, function string, n int) round {
	l := c.newLoad(w)
	l.function = function
	return c.runnersEnd(t, l, func(t *task, l *load) { l.async(t, n, window) })
}

// runnersEnd measures a load that a pool runs. Its ends are counted by the cluster,
// because runners report only to their node.
func (c *benchCluster) runnersEnd(t *task, l *load, generate generator) round {
	before := c.delivered(t)
	m := startMeter(c.cpu)
	l.begin()
	l.run(t, generate)
	c.awaitDelivered(t, before+l.accepted.Load())
	l.lastEnd = time.Now()
	l.settled.Store(l.accepted.Load())
	r := m.end(l.round(false))
	c.verify(t, before, l)
	return r
}

// pollInterval is the time between two polls for the end of a load: the error of a
// rate measured over a second, in percent.
const pollInterval = 10 * time.Millisecond

// awaitDelivered waits until the authority counts this number of delivered
// dispatches.
func (c *benchCluster) awaitDelivered(t *task, count int64) {
	nc := c.callers[slices.Index(c.Nodes, must.Get(c.Authority(t)))].nc
	deadline := time.Now().Add(4 * waitTimeout)
	for {
		m := must.Get(nc.Request(api.SubjectStatus, []byte("{}"), waitTimeout))
		must.Do(refusal(m))
		var s api.Status
		must.Do(json.Unmarshal(m.Data, &s))
		if int64(s.Backlog.Delivered) >= count {
			return
		}
		if time.Now().After(deadline) {
			must.Do(fmt.Errorf("%d of %d jobs are delivered, %d failed", s.Backlog.Delivered, count, s.Backlog.Failed))
		}
		must.Do(backoff.Sleep(t, pollInterval))
	}
}
