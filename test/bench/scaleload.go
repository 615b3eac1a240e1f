package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/test/must"
)

// The charts of the curves of workers, queues and members.
const (
	chartWorkerHeap     = "Heap and stacks per idle worker"
	chartWorkerResident = "Resident memory per idle worker"
	chartStart200       = "Start of a job, at 200 jobs/s"
	chartStart500       = "Start of a job, at 500 jobs/s"
	chartRate           = "Jobs settled"
	chartCPU            = "Processor time of nodes and load"
)

// minForMemory is the number of workers from which their memory is measured: with fewer, that
// of the node varies by more.
const minForMemory = 1000

// measureWorkers measures a node with more and more idle workers.
func (b *bench) measureWorkers(t *task, sizes []int, add func(int, *Point)) {
	cl := b.newClusterForRound(t, procs.Options{Nodes: 1, Profile: true, Config: "[limits]\nmax_connections_per_address = 20000\n\n"})
	n := cl.Nodes[0]
	start := func(idle int) measurement {
		return func(t *task) round {
			return cl.openLoad(t, cl, idle, cl.newLoad(enqueued(queuePlain)), b.open(scaleRate))
		}
	}
	closeWires(openIdle(t, n, atOnce)) // do not count what the first workers allocate once
	b.rounds(t, start(0))
	cl.awaitCapacity(t, 0)
	before, have := footprintOf(t, n), 0
	var grown footprint // by the workers, without what the loads leave behind
	for _, size := range sizes {
		openIdle(t, n, size-have)
		have = size
		cl.awaitCapacity(t, have)
		p, now := &Point{}, footprintOf(t, n)
		grown.inUse += now.inUse - before.inUse
		grown.resident += now.resident - before.resident
		if have >= minForMemory {
			resident, inUse, _ := grown.perWorker(footprint{}, have)
			p.set(chartWorkerHeap, "", "KiB", inUse)
			p.set(chartWorkerResident, "", "KiB", resident)
		}
		f := b.rounds(t, start(have))
		p.setLatency(chartStart200, &f)
		add(size, p)
		before = footprintOf(t, n)
	}
}

// The load over many queues.
const (
	subscriptionsEach  = 500  // of a worker, at most
	creditsOfAllQueues = 6000 // in all, but at least minQueueCredits for each queue
	minQueueCredits    = 8
)

// measureQueues measures a cluster with more and more queues, in which the jobs take turns.
func (b *bench) measureQueues(t *task, sizes []int, add func(int, *Point)) {
	cl := b.newClusterForRound(t, procs.Options{Nodes: 3})
	there := int(must.Get(metricsOf(t, cl.Nodes[0]))["yard_queues"])
	var queues []string
	for _, size := range sizes {
		// A yard has some queues of its own and of other benchmarks, also at its limit.
		for len(queues) < min(size, ledger.MaxQueues-there) {
			queues = append(queues, fmt.Sprintf("scale-%05d", len(queues)))
		}
		cl.addQueues(t, queues)
		plan := workerPlan{queues: queues, credits: max(creditsOfAllQueues/len(queues), minQueueCredits)}
		plan.workers = max(connections*len(cl.Nodes), (len(queues)+subscriptionsEach-1)/subscriptionsEach)
		p := &Point{}
		f := b.rounds(t, func(t *task) round {
			return cl.runBy(t, plan, cl.newLoadOf(queues, plain), false, func(t *task, l *load) {
				l.async(t, max(b.asyncJobs(), 2*len(queues)), window)
			})
		})
		p.set(chartRate, "", jobsPerSecond, f.Value)
		p.set(chartCPU, "", "µs per job", f.Micros)
		f = b.rounds(t, func(t *task) round {
			return cl.runBy(t, plan, cl.newLoadOf(queues, enqueued), true, b.open(scaleRate))
		})
		p.setLatency(chartStart200, &f)
		add(size, p)
	}
}

// newLoadOf returns a load whose jobs take turns in queues.
func (c *benchCluster) newLoadOf(queues []string, to func(queue string) way) *load {
	l := c.newLoad(to(queues[0]))
	for _, queue := range queues {
		l.subjects = append(l.subjects, to(queue).subject)
	}
	return l
}

// addQueues creates those of the queues that do not exist.
func (c *benchCluster) addQueues(t *task, queues []string) {
	next := make(chan string)
	faults := make([]error, atOnce)
	var adding sync.WaitGroup
	for i := range atOnce {
		adding.Go(func() {
			for queue := range next {
				if err := c.addQueue(i, queue); err != nil && faults[i] == nil {
					faults[i] = err
				}
			}
		})
	}
	for _, queue := range queues {
		next <- queue
	}
	close(next)
	adding.Wait()
	must.Do(errors.Join(faults...))
}

// addQueue creates a queue over one of the open connections. It does nothing if there is one.
func (c *benchCluster) addQueue(caller int, queue string) error {
	request, err := json.Marshal(api.QueueRequest{Name: queue})
	if err != nil {
		return err
	}
	m, err := c.callers[caller%len(c.callers)].nc.Request(api.SubjectAPI+".queue.add", request, waitTimeout)
	if err != nil {
		return fmt.Errorf("create queue %s: %w", queue, err)
	}
	if err := refusal(m); err != nil && m.Header.Get("Nats-Service-Error-Code") != api.CodeConflict {
		return fmt.Errorf("create queue %s: %w", queue, err)
	}
	return nil
}

// measureMembers measures clusters of several sizes.
func (b *bench) measureMembers(t *task, sizes []int, add func(int, *Point)) {
	for _, size := range sizes {
		p := &Point{}
		must.Do(perform(t, t.dir, func(t *task) {
			cl := b.newClusterForRound(t, procs.Options{Nodes: size})
			f := b.rounds(t, func(t *task) round { return cl.overhop(t, queuePlain, plain(queuePlain), false, b.async) })
			p.set(chartRate, "", jobsPerSecond, f.Value)
			p.set(chartCPU, "", "µs per job", f.Micros)
			f = b.rounds(t, func(t *task) round { return cl.overhop(t, queuePlain, enqueued(queuePlain), true, b.open(500)) })
			p.setLatency(chartStart500, &f)
		}))
		add(size, p)
	}
}
