package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// yardSuite measures jobs in a cluster of three nodes and in a standalone node, in turn with a
// work queue on JetStream. Processes are started by the first figure that needs them.
func (b *bench) yardSuite() suite {
	var (
		queue   func() *peers
		three   func() *benchCluster
		overhop func() *overhopCluster
		single  func() *benchCluster
	)
	floor := func(latency bool, generate generator) measurement {
		return func(t *task) round { return queue().workQueue(t, latency, generate) }
	}
	jobs := func(queue string, w way, latency bool, generate generator) measurement {
		return func(t *task) round { return three().overhop(t, queue, w, latency, generate) }
	}
	alone := func(w way, latency bool, generate generator) measurement {
		return func(t *task) round { return single().overhop(t, queuePlain, w, latency, generate) }
	}
	start := func(rate int) measurement {
		return func(t *task) round {
			cl := overhop()
			return cl.runBy(t, manyWorkers(queuePlain), cl.enqueueLoad(queuePlain), true, b.open(rate))
		}
	}
	pair := shared(func(t *task) limitPair { return overhop().limitPair(t, b.async) })
	return suite{
		name: "yard", interleaved: true,
		open: func(t *task) {
			queue = startOnce(t, "queue", func(t *task) *peers { return startPeers(t, b.self) })
			three = startOnce(t, "three", b.startCluster(procs.Options{Nodes: 3}))
			overhop = startOnce(t, "overhop", func(t *task) *overhopCluster { return connectOverhop(t, three()) })
			single = startOnce(t, "single", b.startCluster(procs.Options{Nodes: 1}))
		},
		names: []experiment{
			{name: "floor.queue.async", unit: jobsPerSecond, run: floor(false, b.async)},
			{name: "yard3.plain", unit: jobsPerSecond, run: jobs(queuePlain, plain(queuePlain), false, b.async),
				target: target{floor: "floor.queue.async", ratio: 1.3}},
			{name: "yard3.limit", unit: jobsPerSecond, run: jobs(queueLimited, plain(queueLimited), false, b.async),
				target: target{floor: "yard3.plain", ratio: 0.95}, note: fmt.Sprintf("concurrency_limit %d", strictLimit)},
			{name: "yard3.enqueue", unit: jobsPerSecond, run: jobs(queuePlain, enqueued(queuePlain), false, b.async),
				target: target{floor: "floor.queue.async", ratio: 1.3}},
			{name: "overhop.jobs", unit: jobsPerSecond, run: pair(func(p limitPair) round { return p.without }),
				target: target{floor: "floor.queue.async", ratio: 1.3}, note: "ENQUEUE to DONE, 64 connections and 64 workers at three nodes"},
			{name: "overhop.limit", unit: jobsPerSecond, run: pair(func(p limitPair) round { return p.with }),
				target: target{floor: "overhop.jobs", ratio: 0.95}, note: fmt.Sprintf("measured alternately with it, with a concurrency_limit of %d, the workers' total credits", limitAtCapacity)},
			{name: "yard1.plain", unit: jobsPerSecond, run: alone(plain(queuePlain), false, b.async), target: target{floor: "yard3.plain", ratio: 1.3}},
			{name: "yard1.enqueue", unit: jobsPerSecond, run: alone(enqueued(queuePlain), false, b.async), target: target{floor: "yard3.enqueue", ratio: 1.3}},

			{name: "floor.queue.sync64", unit: jobsPerSecond, run: floor(false, b.sync)},
			{name: "yard3.sync64", unit: jobsPerSecond, run: jobs(queuePlain, enqueued(queuePlain), false, b.sync),
				target: target{floor: "floor.queue.sync64", ratio: 1.2}},
			{name: "yard1.sync64", unit: jobsPerSecond, run: alone(enqueued(queuePlain), false, b.sync), target: target{floor: "yard3.sync64", ratio: 1.3}},

			{name: "floor.queue.start500", unit: milliseconds, run: floor(true, b.open(500))},
			{name: "yard3.start500", unit: milliseconds, run: jobs(queuePlain, enqueued(queuePlain), true, b.open(500)),
				target: target{floor: "floor.queue.start500", maxRatio: 1}},
			{name: "overhop.start500", unit: milliseconds, run: start(500), target: target{floor: "floor.queue.start500", maxRatio: 1},
				note: "from the due time of the ENQUEUE to the QUEST at a worker, open loop, at 500 jobs/s"},
			{name: "yard1.start500", unit: milliseconds, run: alone(enqueued(queuePlain), true, b.open(500)), target: target{floor: "yard3.start500", maxRatio: 1}},

			{name: "floor.queue.start2000", unit: milliseconds, run: floor(true, b.open(2000))},
			{name: "yard3.start2000", unit: milliseconds, run: jobs(queuePlain, enqueued(queuePlain), true, b.open(2000)),
				target: target{floor: "floor.queue.start2000", maxRatio: 1}},
			{name: "overhop.start2000", unit: milliseconds, run: start(2000), target: target{floor: "floor.queue.start2000", maxRatio: 1},
				note: "the same at 2000 jobs/s"},
			{name: "yard1.start2000", unit: milliseconds, run: alone(enqueued(queuePlain), true, b.open(2000)), target: target{floor: "yard3.start2000", maxRatio: 1}},

			{name: "yard3.rrq", unit: jobsPerSecond, note: "a pool of one process with 32 slots on each node",
				run: func(t *task) round { return three().rrq(t, plain(queueRRQ), functionRRQ, b.asyncJobs()/3) }},
			{name: "yard3.history", unit: "bytes/job", rounds: 1, target: target{atMost: 100},
				run: func(t *task) round { return three().history(t, b.sync) }},
			{name: "yard3.trip.overhop", unit: milliseconds, note: "one job at a time: from the enqueue call to the notification of its end",
				run: func(t *task) round { return three().roundTrip(t, queuePlain, "") }},
			{name: "yard3.trip.rrq", unit: milliseconds, target: target{floor: "yard3.trip.overhop"}, note: "the same with a runner",
				run: func(t *task) round { return three().roundTrip(t, queueRRQ, functionRRQ) }},
		},
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
