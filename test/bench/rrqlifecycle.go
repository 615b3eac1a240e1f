package bench

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
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
func (c *benchCluster) submitSleeps(ctx context.Context, n int, d time.Duration) error {
	answers := make(chan error, n)
	for i := range n {
		m := &nats.Msg{Subject: api.SubjectEnqueue + "." + queueRRQ, Data: fmt.Appendf(nil, `{"params":{"ms":%d},"function":"%s#sleep"}`, d.Milliseconds(), poolName)}
		c.callers[i%len(c.callers)].call(m, func(_ *nats.Msg, err error) { answers <- err })
	}
	for range n {
		select {
		case err := <-answers:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// poolOf returns the status of the pool under test on a node.
func poolOf(ctx context.Context, n *procs.Node) (api.Pool, error) {
	s, err := n.Status(ctx)
	if err != nil {
		return api.Pool{}, err
	}
	i := slices.IndexFunc(s.Pools, func(p api.Pool) bool { return p.Runner == poolName })
	if i < 0 {
		return api.Pool{}, fmt.Errorf("%s has no pool %s", n.Name, poolName)
	}
	return s.Pools[i], nil
}

// awaitBusy waits until every slot of the pools under test is in use.
func (c *benchCluster) awaitBusy(ctx context.Context) error {
	return c.await(ctx, "every slot is busy", func() error {
		for _, n := range c.Nodes {
			p, err := poolOf(ctx, n)
			if err == nil && p.InFlight < p.Slots {
				err = fmt.Errorf("%d of %d at %s", p.InFlight, p.Slots, n.Name)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// poolMemory is the memory cost of a pool, in KiB.
type poolMemory struct {
	idleResident, idleInUse float64 // of the node, per slot
	busyResident, busyInUse float64 // additionally, per running request
	runner                  float64 // resident memory of each process
}

// measurePoolMemory compares a new node with one that has a wide pool, idle and then
// with a request in every slot.
func (b *bench) measurePoolMemory(ctx context.Context, dir string) (m poolMemory, err error) {
	bare, err := b.newClusterForRound(ctx, dir, procs.Options{Nodes: 1, Profile: true})
	if err != nil {
		return m, err
	}
	none, err := footprintOf(ctx, bare.Nodes[0])
	bare.close()
	if err != nil {
		return m, err
	}
	cmd, err := golang.command(b.Binary)
	if err != nil {
		return m, err
	}
	s := shape{b.share(wideShape.processes), wideShape.inFlight}
	cl, err := b.newClusterForRound(ctx, dir, procs.Options{Nodes: 1, Profile: true, Config: poolConfig(poolName, cmd, s)})
	if err != nil {
		return m, err
	}
	defer cl.close()
	n, slots := cl.Nodes[0], s.slots()
	idle, err := footprintOf(ctx, n)
	if err != nil {
		return m, err
	}
	before, err := cl.delivered(ctx)
	if err != nil {
		return m, err
	}
	if err := cl.submitSleeps(ctx, slots, sleepTime); err != nil {
		return m, err
	}
	if err := cl.awaitBusy(ctx); err != nil {
		return m, err
	}
	busy, err := footprintOf(ctx, n)
	if err != nil {
		return m, err
	}
	p, err := poolOf(ctx, n)
	if err != nil {
		return m, err
	}
	for _, member := range p.Members {
		m.runner += float64(procstat.PID(member.PID).Memory()) / 1024 / float64(len(p.Members))
	}
	m.idleResident, m.idleInUse, _ = idle.perWorker(none, slots)
	m.busyResident, m.busyInUse, _ = busy.perWorker(idle, slots)
	return m, cl.awaitDelivered(ctx, before+int64(slots))
}

// recovery is the time that a job takes in an idle pool, and just after the pool's only
// process was killed.
type recovery struct{ before, after round }

// measureRecovery measures jobs, killing the runner before every other one.
func (b *bench) measureRecovery(ctx context.Context, dir string) (r recovery, err error) {
	cmd, err := golang.command(b.Binary)
	if err != nil {
		return r, err
	}
	cl, err := b.newClusterForRound(ctx, dir, procs.Options{Nodes: 1, Config: poolConfig(poolName, cmd, shortShape)})
	if err != nil {
		return r, err
	}
	defer cl.close()
	var before, after []float64
	l := cl.newLoad(enqueued(queueRRQ))
	l.function = poolName + "#echo"
	l.begin()
	n := b.share(kills)
	for i := range 2 * n {
		p, err := poolOf(ctx, cl.Nodes[0])
		if err != nil {
			return r, err
		}
		if i%2 == 1 {
			if p.Members[0].PID == 0 { // PID 0 would be this process's group
				return r, fmt.Errorf("pool %s has no process: %s", poolName, p.Reason)
			}
			if err := syscall.Kill(p.Members[0].PID, syscall.SIGKILL); err != nil {
				return r, fmt.Errorf("kill the runner: %w", err)
			}
		}
		began := time.Now()
		if err := oneTrip(cl.callers[0].nc, l.message(i, began.Sub(l.began))); err != nil {
			return r, err
		}
		if took := ms(time.Since(began)); i%2 == 1 {
			after = append(after, took)
		} else {
			before = append(before, took)
		}
	}
	r.before = round{value: quantile(before, 0.5), p99: quantile(before, 0.99), jobs: n, settled: n}
	r.after = round{value: quantile(after, 0.5), p99: quantile(after, 0.99), jobs: n, settled: n}
	return r, nil
}

// measureDrain stops one of three nodes while every slot of the cluster is busy, and
// measures the time until its process has exited. All jobs must be delivered.
func (b *bench) measureDrain(ctx context.Context, dir string) (round, error) {
	cmd, err := golang.command(b.Binary)
	if err != nil {
		return round{}, err
	}
	cl, err := b.newClusterForRound(ctx, dir, procs.Options{Nodes: 3, Config: poolConfig(poolName, cmd, drainShape)})
	if err != nil {
		return round{}, err
	}
	defer cl.close()
	authority, err := cl.Authority(ctx)
	if err != nil {
		return round{}, err
	}
	before, err := cl.delivered(ctx)
	if err != nil {
		return round{}, err
	}
	jobs := drainShape.slots() * len(cl.Nodes)
	if err := cl.submitSleeps(ctx, jobs, busyTime); err != nil {
		return round{}, err
	}
	if err := cl.awaitBusy(ctx); err != nil {
		return round{}, err
	}
	stopped := cl.Nodes[slices.IndexFunc(cl.Nodes, func(n *procs.Node) bool { return n != authority })]
	began := time.Now()
	stopped.Process.Stop(waitTimeout)
	took := time.Since(began)
	return round{value: ms(took), jobs: jobs, settled: jobs}, cl.awaitDelivered(ctx, before+int64(jobs))
}
