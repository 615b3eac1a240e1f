package bench

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"yardmaster/cluster"
	"yardmaster/drill/yard"
	"yardmaster/runnerpool"

	"github.com/nats-io/nats.go"
)

// What the life of a pool is measured with.
const (
	wide     = "wide"          // name of the pool under test
	kills    = 50              // of a runner, one after the other
	napTime  = 5 * time.Second // of the handlers that keep slots busy for a look
	busyTime = time.Second     // of the handlers that run while a node stops
)

var (
	wideShape  = shape{16, 64} // for memory: what a slot costs must be seen above the node's own
	shortShape = shape{1, 8}   // for recovery
	drainShape = shape{2, 16}  // on each of three nodes
)

// share is n, or less of it in a shorter round than is usual.
func (b *bench) share(n int) int {
	return max(1, min(n, int(float64(n)*b.Round.Seconds()/defaultRound.Seconds())))
}

// nap hands in jobs that only sleep, and returns when all of them are accepted.
func (y *yards) nap(ctx context.Context, n int, d time.Duration) error {
	answers := make(chan error, n)
	for i := range n {
		m := &nats.Msg{Subject: cluster.SubjectEnqueue + "." + queueRRQ, Data: fmt.Appendf(nil, `{"params":{"ms":%d},"function":"%s#sleep"}`, d.Milliseconds(), wide)}
		y.callers[i%len(y.callers)].call(m, func(_ *nats.Msg, err error) { answers <- err })
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

// poolOf is the pool under test, as its node sees it.
func poolOf(ctx context.Context, n *yard.Node) (runnerpool.PoolStatus, error) {
	s, err := n.Status(ctx)
	if err != nil {
		return runnerpool.PoolStatus{}, err
	}
	i := slices.IndexFunc(s.Pools, func(p runnerpool.PoolStatus) bool { return p.Runner == wide })
	if i < 0 {
		return runnerpool.PoolStatus{}, fmt.Errorf("%s has no pool %s", n.Name, wide)
	}
	return s.Pools[i], nil
}

// awaitBusy waits until every slot of the pools under test runs something.
func (y *yards) awaitBusy(ctx context.Context) error {
	return y.await(ctx, "every slot is busy", func() error {
		for _, n := range y.Nodes {
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

// poolMemory is what a pool costs, in KiB.
type poolMemory struct {
	idleResident, idleInUse float64 // of the node, for each slot
	busyResident, busyInUse float64 // of the node, for each request in flight on top
	runner                  float64 // resident, of each process
}

// measurePoolMemory compares a fresh node with one that has a wide pool, idle
// and then with a request in every slot.
func (b *bench) measurePoolMemory(ctx context.Context, dir string) (m poolMemory, err error) {
	bare, err := b.freshYard(ctx, dir, yard.Options{Nodes: 1, Profile: true})
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
	s := shape{b.share(wideShape.processes), wideShape.flight}
	y, err := b.freshYard(ctx, dir, yard.Options{Nodes: 1, Profile: true, Config: poolConfig(wide, cmd, s)})
	if err != nil {
		return m, err
	}
	defer y.close()
	n, slots := y.Nodes[0], s.slots()
	idle, err := footprintOf(ctx, n)
	if err != nil {
		return m, err
	}
	before, err := y.delivered(ctx)
	if err != nil {
		return m, err
	}
	if err := y.nap(ctx, slots, napTime); err != nil {
		return m, err
	}
	if err := y.awaitBusy(ctx); err != nil {
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
		m.runner += float64(yard.PID(member.PID).Memory()) / 1024 / float64(len(p.Members))
	}
	m.idleResident, m.idleInUse, _ = idle.perWorker(none, slots)
	m.busyResident, m.busyInUse, _ = busy.perWorker(idle, slots)
	return m, y.awaitDelivered(ctx, before+int64(slots))
}

// recovery is how long a job takes that is handed in to an idle pool, and one
// that is handed in just after the pool's only process was killed.
type recovery struct{ before, after round }

func (b *bench) measureRecovery(ctx context.Context, dir string) (r recovery, err error) {
	cmd, err := golang.command(b.Binary)
	if err != nil {
		return r, err
	}
	y, err := b.freshYard(ctx, dir, yard.Options{Nodes: 1, Config: poolConfig(wide, cmd, shortShape)})
	if err != nil {
		return r, err
	}
	defer y.close()
	var before, after []float64
	l := y.newLoad(enqueued(queueRRQ))
	l.function = wide + "#echo"
	l.begin()
	n := b.share(kills)
	for i := range 2 * n {
		p, err := poolOf(ctx, y.Nodes[0])
		if err != nil {
			return r, err
		}
		if i%2 == 1 {
			if p.Members[0].PID == 0 { // which would be this process's own group
				return r, fmt.Errorf("pool %s has no process: %s", wide, p.Reason)
			}
			if err := syscall.Kill(p.Members[0].PID, syscall.SIGKILL); err != nil {
				return r, fmt.Errorf("kill the runner: %w", err)
			}
		}
		began := time.Now()
		if err := oneTrip(y.callers[0].nc, l.message(i, began.Sub(l.began))); err != nil {
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

// measureDrain asks one of three nodes to stop while every slot of the yard is
// busy, and takes the time until its process has ended. Nothing may be lost or
// begun twice.
func (b *bench) measureDrain(ctx context.Context, dir string) (round, error) {
	cmd, err := golang.command(b.Binary)
	if err != nil {
		return round{}, err
	}
	y, err := b.freshYard(ctx, dir, yard.Options{Nodes: 3, Config: poolConfig(wide, cmd, drainShape)})
	if err != nil {
		return round{}, err
	}
	defer y.close()
	authority, err := y.Authority(ctx)
	if err != nil {
		return round{}, err
	}
	before, err := y.delivered(ctx)
	if err != nil {
		return round{}, err
	}
	jobs := drainShape.slots() * len(y.Nodes)
	if err := y.nap(ctx, jobs, busyTime); err != nil {
		return round{}, err
	}
	if err := y.awaitBusy(ctx); err != nil {
		return round{}, err
	}
	stopped := y.Nodes[slices.IndexFunc(y.Nodes, func(n *yard.Node) bool { return n != authority })]
	began := time.Now()
	stopped.Process.Stop(patience)
	took := time.Since(began)
	return round{value: ms(took), jobs: jobs, settled: jobs}, y.awaitDelivered(ctx, before+int64(jobs))
}
