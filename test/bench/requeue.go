package bench

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

const (
	queueRequeue  = "bench-requeue"
	requeuedJobs  = 1500 // for each second of a round
	requeueTarget = 1460 // jobs per second
	requeueWait   = 2 * time.Minute
	requeuePatch  = `{"pad":"edited"}`
)

// requeueSuite measures operations that requeue dead letters, in turn with the enqueueing of as many jobs.
func (b *bench) requeueSuite() suite {
	var cl *benchCluster
	open := b.startCluster(procs.Options{Nodes: 3})
	n := int(b.Round.Seconds() * requeuedJobs)
	generate := func(t *task, l *load) { l.async(t, n, window) }
	requeue := func(params string) measurement {
		return func(t *task) round { return cl.requeue(t, params, generate) }
	}
	same, edited := alternating(requeue(""), requeue(requeuePatch))
	goal := target{floor: "requeue.enqueue", atLeast: requeueTarget}
	return suite{
		name: "requeue", interleaved: true,
		open: func(t *task) {
			cl = open(t)
			must.Do(cl.AddQueue(t, queueRequeue, 0))
		},
		names: []experiment{
			{name: "requeue.enqueue", unit: jobsPerSecond, note: "acceptance of as many jobs as are requeued",
				run: func(t *task) round { return cl.enqueueOnly(t, generate) }},
			{name: "requeue.same", unit: jobsPerSecond, target: goal, run: same,
				note: "dead letters that an operation requeues as they are. It rests for as long as it works"},
			{name: "requeue.edited", unit: jobsPerSecond, target: goal, run: edited,
				note: "the same with other params, for which new jobs are made"},
		},
	}
}

// enqueueOnly measures the acceptance of jobs, which it runs afterwards.
func (c *benchCluster) enqueueOnly(t *task, generate generator) round {
	l := c.newLoad(keyed(queueRequeue))
	m := startMeter(c.cpu)
	l.begin()
	l.run(t, generate)
	n := int(l.accepted.Load())
	r := m.end(round{value: l.acceptRate(), jobs: n, settled: n})
	c.runAll(t, c.sampleSize(queueRequeue), l, func(*task, *load) {})
	return r
}

// requeue measures an operation that requeues the dead letters of jobs which generate enqueues and
// workers fail. params is a merge patch, "" for none. Afterwards it runs the jobs.
func (c *benchCluster) requeue(t *task, params string, generate generator) round {
	l, plan := c.newLoad(keyed(queueRequeue)), c.sampleSize(queueRequeue)
	tag := c.newKey()
	l.failEvery, l.fields = 1, func(int) string { return `,"tags":["` + tag + `"]` }
	c.runAll(t, plan, l, generate)
	n := int(l.accepted.Load())
	c.await(t, c.Nodes[0], "all dead letters are stored", func(s *api.Status) error {
		if s.OutboxBytes > 0 {
			return fmt.Errorf("%d bytes are not published", s.OutboxBytes)
		}
		return nil
	})
	m := startMeter(c.cpu)
	op := c.operate(t, api.OperationStart{Action: "requeue", Query: "state:failed tag:" + tag, Params: json.RawMessage(params)})
	if int(op.Changed) != n || op.Failed+op.Skipped > 0 {
		must.Do(fmt.Errorf("operation %d has requeued %d of %d jobs, skipped %d and failed %d", op.ID, op.Changed, n, op.Skipped, op.Failed))
	}
	r := m.end(round{value: float64(n) / op.Ended.Sub(op.Started).Seconds(), jobs: n, settled: n})
	again := &load{}
	again.accepted.Store(int64(n))
	c.runAll(t, plan, again, func(*task, *load) {})
	return r
}

// runAll has workers end all jobs of a load, and waits until they are gone.
func (c *benchCluster) runAll(t *task, plan workerPlan, l *load, generate generator) {
	h := startWorkers(t, c.Nodes, plan, l)
	l.measure(t, c.cpu, false, generate)
	h.close()
	must.Do(l.failure())
	c.awaitCapacity(t, 0)
}

// operate starts an operation and waits until it is done.
func (c *benchCluster) operate(t *task, start api.OperationStart) (op api.Operation) {
	n := c.Nodes[0]
	must.Do(n.Ask(t, api.Subject("operation-start"), start, &op))
	deadline := time.Now().Add(requeueWait)
	must.Do(c.Until(t, "the operation is done", func() error {
		must.Do(n.Ask(t, api.Subject("operation-show"), api.OperationRequest{ID: op.ID}, &op))
		if op.State == "done" {
			return nil
		}
		if time.Now().After(deadline) {
			must.Do(fmt.Errorf("operation %d is %s after %v, with %d jobs changed; it waits for %q", op.ID, op.State, requeueWait, op.Changed, op.WaitingFor))
		}
		return fmt.Errorf("it is %s", op.State)
	}))
	return op
}
