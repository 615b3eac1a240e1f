package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// yards are the systems that [bench.yardSuite] compares. Each is started once, by its function.
type yards struct {
	*bench
	queue   func() *peers // the work queue on JetStream
	three   func() *benchCluster
	overhop func() *overhopCluster // the same three nodes
	single  func() *benchCluster
}

// yardSuite measures jobs in a cluster of three nodes and in a standalone node, in turn with a
// work queue on JetStream.
func (b *bench) yardSuite() suite {
	y := &yards{bench: b}
	s := suite{name: "yard", interleaved: true, names: slices.Concat(y.rates(), y.limitRates(), y.latencies(), y.limitLatencies(), y.others())}
	s.open = func(t *task) {
		y.queue = startOnce(t, "queue", func(t *task) *peers { return startPeers(t, b.self) })
		y.three = startOnce(t, "three", b.startCluster(procs.Options{Nodes: 3}))
		y.overhop = startOnce(t, "overhop", func(t *task) *overhopCluster { return connectOverhop(t, y.three()) })
		y.single = startOnce(t, "single", b.startCluster(procs.Options{Nodes: 1}))
		for _, e := range b.wanted(s) { // so that no round has fewer processes beside it than another
			switch system, _, _ := strings.Cut(e.name, "."); system {
			case "floor":
				y.queue()
			case "yard3":
				y.three()
			case "overhop", "sdk":
				y.overhop()
			case "yard1":
				y.single()
			}
		}
	}
	return s
}

// floor measures the work queue.
func (y *yards) floor(latency bool, generate generator) measurement {
	return func(t *task) round { return y.queue().workQueue(t, latency, generate) }
}

// jobs measures three nodes.
func (y *yards) jobs(queue string, w way, latency bool, generate generator) measurement {
	return func(t *task) round { return y.three().overhop(t, queue, w, latency, generate) }
}

// alone measures a standalone node.
func (y *yards) alone(w way, latency bool, generate generator) measurement {
	return func(t *task) round { return y.single().overhop(t, queuePlain, w, latency, generate) }
}

// start measures the start latency of jobs that are enqueued over Overhop.
func (y *yards) start(rate int) measurement {
	return func(t *task) round {
		cl := y.overhop()
		return cl.runBy(t, manyWorkers(queuePlain), cl.enqueueLoad(queuePlain), true, y.open(rate))
	}
}

// rates returns the experiments that measure rates.
func (y *yards) rates() []experiment {
	overhop := func(queue string) measurement {
		return func(t *task) round {
			return y.overhop().runBy(t, manyWorkers(queue), y.overhop().enqueueLoad(queue), false, y.async)
		}
	}
	unlimited, limited := alternating(overhop(queuePlain), overhop(queueAtCapacity))
	return []experiment{
		{name: "floor.queue.async", unit: jobsPerSecond, run: y.floor(false, y.async)},
		{name: "yard3.plain", unit: jobsPerSecond, run: y.jobs(queuePlain, plain(queuePlain), false, y.async),
			target: target{floor: "floor.queue.async", ratio: 1.3}},
		{name: "yard3.limit", unit: jobsPerSecond, run: y.jobs(queueLimited, plain(queueLimited), false, y.async),
			target: target{floor: "yard3.plain", ratio: 0.95}, note: fmt.Sprintf("concurrency_limit %d", strictLimit)},
		{name: "yard3.enqueue", unit: jobsPerSecond, run: y.jobs(queuePlain, enqueued(queuePlain), false, y.async),
			target: target{floor: "floor.queue.async", ratio: 1.3}},
		{name: "yard3.schema", unit: jobsPerSecond, run: y.jobs(queueChecked, enqueued(queueChecked), false, y.async),
			target: target{floor: "yard3.enqueue"}, note: "each payload is checked against a schema, by the node and by the authority"},
		{name: "overhop.jobs", unit: jobsPerSecond, run: unlimited,
			target: target{floor: "floor.queue.async", ratio: 1.3}, note: "ENQUEUE to DONE, 64 connections and 64 workers at three nodes"},
		{name: "overhop.limit", unit: jobsPerSecond, run: limited,
			target: target{floor: "overhop.jobs", ratio: 0.95}, note: fmt.Sprintf("measured alternately with it, with a concurrency_limit of %d, the workers' total credits", limitAtCapacity)},
		{name: "sdk.wire", unit: jobsPerSecond, run: func(t *task) round { return y.overhop().sdkWire(t, y.async) },
			target: target{floor: "overhop.jobs"}, note: "overhop.jobs with what the Go SDK sends besides: a key and a function"},
		{name: "sdk.jobs", unit: jobsPerSecond, run: func(t *task) round { return y.overhop().sdk(t, y.async) },
			target: target{floor: "sdk.wire", ratio: 0.95}, note: "the same by the Go SDK, with typed params"},
		{name: "yard1.plain", unit: jobsPerSecond, run: y.alone(plain(queuePlain), false, y.async), target: target{floor: "yard3.plain", ratio: 1.3}},
		{name: "yard1.enqueue", unit: jobsPerSecond, run: y.alone(enqueued(queuePlain), false, y.async), target: target{floor: "yard3.enqueue", ratio: 1.3}},

		{name: "floor.queue.sync64", unit: jobsPerSecond, run: y.floor(false, y.sync)},
		{name: "yard3.sync64", unit: jobsPerSecond, run: y.jobs(queuePlain, enqueued(queuePlain), false, y.sync),
			target: target{floor: "floor.queue.sync64", ratio: 1.2}},
		{name: "yard1.sync64", unit: jobsPerSecond, run: y.alone(enqueued(queuePlain), false, y.sync), target: target{floor: "yard3.sync64", ratio: 1.3}},
	}
}

// latencies returns the experiments that measure start latencies.
func (y *yards) latencies() (all []experiment) {
	for _, rate := range []int{500, 2000} {
		load, start := y.open(rate), fmt.Sprintf(".start%d", rate)
		asFast := func(floor string) target { return target{floor: floor + start, maxRatio: 1} }
		all = append(all,
			experiment{name: "floor.queue" + start, unit: milliseconds, run: y.floor(true, load)},
			experiment{name: "yard3" + start, unit: milliseconds, run: y.jobs(queuePlain, enqueued(queuePlain), true, load), target: asFast("floor.queue")},
			experiment{name: "overhop" + start, unit: milliseconds, run: y.start(rate), target: asFast("floor.queue"),
				note: fmt.Sprintf("from the due time of the ENQUEUE to the QUEST at a worker, open loop, at %d jobs/s", rate)},
			experiment{name: "yard1" + start, unit: milliseconds, run: y.alone(enqueued(queuePlain), true, load), target: asFast("yard3")},
		)
	}
	return all
}

// others returns the experiments that are not compared with the work queue.
func (y *yards) others() []experiment {
	return []experiment{
		{name: "yard3.rrq", unit: jobsPerSecond, note: "a pool of one process with 32 slots on each node",
			run: func(t *task) round { return y.three().rrq(t, plain(queueRRQ), functionRRQ, y.asyncJobs()/3) }},
		{name: "yard3.history", unit: "bytes/job", rounds: 1, target: target{atMost: 100},
			run: func(t *task) round { return y.three().history(t, y.sync) }},
		{name: "yard3.trip.overhop", unit: milliseconds, note: "one job at a time: from the enqueue call to the notification of its end",
			run: func(t *task) round { return y.three().roundTrip(t, queuePlain, "") }},
		{name: "yard3.trip.rrq", unit: milliseconds, target: target{floor: "yard3.trip.overhop"}, note: "the same with a runner",
			run: func(t *task) round { return y.three().roundTrip(t, queueRRQ, functionRRQ) }},
	}
}

// startOnce returns a function that starts something when it is called for the first time, with a
// directory of its own, and returns it. It is stopped at the end of t.
func startOnce[T any](t *task, name string, start func(*task) T) func() T {
	return sync.OnceValue(func() T {
		own := &task{Context: t.Context, dir: filepath.Join(t.dir, name)}
		t.cleanup(own.close)
		must.Do(os.Mkdir(own.dir, 0o750))
		return start(own)
	})
}
