package bench

import (
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"

	"github.com/nats-io/nats.go"
)

// The parameters of the life cycle benchmarks.
const (
	poolName  = "wide"          // name of the pool under test
	kills     = 50              // kills of a runner, one after the other
	sleepTime = 5 * time.Second // how long handlers keep slots busy for a memory measurement
	busyTime  = time.Second     // how long handlers run while a node stops
)

var (
	wideShape  = shape{16, 64} // for memory: large compared with the node itself
	shortShape = shape{1, 8}   // for recovery
	drainShape = shape{2, 16}  // on each of three nodes
)

// share returns n, or proportionally less in rounds shorter than the default.
func (b *bench) share(n int) int {
	return max(1, min(n, int(float64(n)*b.Round.Seconds()/defaultRound.Seconds())))
}

// submitSleeps enqueues n jobs that sleep for d, and returns when all are accepted.
func (c *benchCluster) submitSleeps(t *task, n int, d time.Duration) {
	answers := make(chan error, n)
	for i := range n {
		m := &nats.Msg{Subject: api.SubjectEnqueue + "." + queueRRQ, Data: fmt.Appendf(nil, `{"params":{"ms":%d},"function":"%s#sleep"}`, d.Milliseconds(), poolName)}
		c.callers[i%len(c.callers)].call(m, func(_ *nats.Msg, err error) { answers <- err })
	}
	for range n {
		select {
		case err := <-answers:
			must.Do(err)
		case <-t.Done():
			must.Do(t.Err())
		}
	}
}

// poolOf returns the pool under test in the status of a node.
func poolOf(s *api.Status) api.Pool {
	return s.Pools[slices.IndexFunc(s.Pools, func(p api.Pool) bool { return p.Runner == poolName })]
}

// awaitBusy waits until every slot of the pools under test is in use.
func (c *benchCluster) awaitBusy(t *task) {
	for _, n := range c.Nodes {
		c.await(t, n, "every slot is busy", func(s *api.Status) error {
			if p := poolOf(s); p.InFlight < p.Slots {
				return fmt.Errorf("%d of %d at %s", p.InFlight, p.Slots, n.Name)
			}
			return nil
		})
	}
}

// newPool starts a cluster for one round, with a pool of a shape on each node.
func (b *bench) newPool(t *task, nodes int, profile bool, s shape) *benchCluster {
	return b.newClusterForRound(t, procs.Options{Nodes: nodes, Profile: profile, Config: poolConfig(poolName, must.Get(golang.command(b.Binary)), s)})
}

// poolMemory is the memory cost of a pool, in KiB.
type poolMemory struct {
	idleResident, idleInUse float64 // of the node, per slot
	busyResident, busyInUse float64 // additionally, per running request
	runner                  float64 // resident memory of each process
}

// measurePoolMemory compares a new node with one that has a wide pool, idle and then
// with a request in every slot.
func (b *bench) measurePoolMemory(t *task) (m poolMemory) {
	bare := b.newClusterForRound(t, procs.Options{Nodes: 1, Profile: true})
	none := footprintOf(t, bare.Nodes[0])
	bare.Stop()
	s := shape{b.share(wideShape.processes), wideShape.inFlight}
	cl := b.newPool(t, 1, true, s)
	n, slots := cl.Nodes[0], s.slots()
	idle := footprintOf(t, n)
	before := cl.delivered(t)
	cl.submitSleeps(t, slots, sleepTime)
	cl.awaitBusy(t)
	busy := footprintOf(t, n)
	status := must.Get(n.Status(t))
	p := poolOf(&status)
	for _, member := range p.Members {
		m.runner += float64(procstat.PID(member.PID).Memory()) / 1024 / float64(len(p.Members))
	}
	m.idleResident, m.idleInUse, _ = idle.perWorker(none, slots)
	m.busyResident, m.busyInUse, _ = busy.perWorker(idle, slots)
	cl.awaitDelivered(t, before+int64(slots))
	return m
}

// recovery is the time that a job takes in an idle pool, and just after the pool's only
// process was killed.
type recovery struct{ before, after round }

// measureRecovery measures jobs, killing the runner before every other one.
func (b *bench) measureRecovery(t *task) recovery {
	cl := b.newPool(t, 1, false, shortShape)
	var took [2][]float64 // without and after a kill
	l := cl.newLoad(enqueued(queueRRQ))
	l.function = poolName + "#echo"
	l.begin()
	for i := range 2 * b.share(kills) {
		status := must.Get(cl.Nodes[0].Status(t))
		if p := poolOf(&status); i%2 == 1 {
			if p.Members[0].PID == 0 { // PID 0 would be this process's group
				must.Do(fmt.Errorf("pool %s has no process: %s", poolName, p.Reason))
			}
			must.Do(syscall.Kill(p.Members[0].PID, syscall.SIGKILL))
		}
		began := time.Now()
		must.Do(oneTrip(cl.callers[0].nc, l.message(i, began.Sub(l.began))))
		took[i%2] = append(took[i%2], ms(time.Since(began)))
	}
	return recovery{latencyRound(took[0]), latencyRound(took[1])}
}

// measureDrain stops one of three nodes while every slot of the cluster is busy, and
// measures the time until its process has exited. All jobs must be delivered.
func (b *bench) measureDrain(t *task) round {
	cl := b.newPool(t, 3, false, drainShape)
	authority := must.Get(cl.Authority(t))
	before := cl.delivered(t)
	jobs := drainShape.slots() * len(cl.Nodes)
	cl.submitSleeps(t, jobs, busyTime)
	cl.awaitBusy(t)
	stopped := cl.Nodes[slices.IndexFunc(cl.Nodes, func(n *procs.Node) bool { return n != authority })]
	began := time.Now()
	stopped.Process.Stop(waitTimeout)
	took := time.Since(began)
	cl.awaitDelivered(t, before+int64(jobs))
	return round{value: ms(took), jobs: jobs, settled: jobs}
}
