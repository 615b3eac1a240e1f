package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/procs"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
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
		c.callers[i%len(c.callers)].call(m, new(atomic.Int64), func(_ *nats.Msg, err error) { answers <- err })
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

// The number of runners started in a round, and how many of them are in one pool.
const (
	spawnCount = 1000
	spawnWidth = 25
)

// spawned is the cost of starting and stopping runners.
type spawned struct {
	Spawns      int     `json:"spawns"`
	Took        float64 `json:"took_ms"`  // sum of the times until all of a pool were ready
	Ended       float64 `json:"ended_ms"` // sum of the times until all of a pool were gone
	Resident    int64   `json:"resident_bytes"`
	Descriptors int     `json:"descriptors"`
	Threads     int     `json:"threads"`
	Goroutines  int     `json:"goroutines"`
	Children    int     `json:"children"` // left at the end
}

// spawnRunners runs pools with spawnWidth runners one after the other until n runners
// have been started. It prints the cost as JSON. A first pool is not counted, because
// it makes one-time allocations.
func spawnRunners(ctx context.Context, n int, cmd []string) error {
	width := min(n, spawnWidth)
	if _, _, err := spawnPool(ctx, width, cmd); err != nil {
		return err
	}
	before, sum := selfPrint(), spawned{}
	for sum.Spawns < n {
		up, gone, err := spawnPool(ctx, width, cmd)
		if err != nil {
			return err
		}
		sum.Spawns += width
		sum.Took += ms(up)
		sum.Ended += ms(gone)
	}
	after := selfPrint()
	sum.Resident, sum.Descriptors = after.Resident-before.Resident, after.Descriptors-before.Descriptors
	sum.Threads, sum.Goroutines, sum.Children = after.Threads-before.Threads, after.Goroutines-before.Goroutines, after.Children
	return json.NewEncoder(os.Stdout).Encode(sum)
}

// selfPrint returns the resource usage of this process after a garbage collection.
func selfPrint() (s spawned) {
	runtime.GC()
	self := procstat.Self()
	s.Resident, s.Descriptors, s.Threads, s.Children = self.Memory(), self.Descriptors(), self.Threads(), len(self.Children())
	s.Goroutines = runtime.NumGoroutine()
	return s
}

// spawnCounter counts the runners of a pool that have offered free slots.
type spawnCounter struct {
	mu    sync.Mutex
	up    map[string]bool
	width int           // number of runners
	all   chan struct{} // closed when width runners have offered free slots
}

func (t *spawnCounter) Report(job.Outcome, func(job.Settled)) {}
func (t *spawnCounter) Stalled(_, _ string)                   {}
func (t *spawnCounter) Recovered(_, _ string)                 {}

func (t *spawnCounter) Log(job.LogLine) {}

func (t *spawnCounter) Offer(o job.Offer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.Free > 0 && !t.up[o.Worker] {
		if t.up[o.Worker] = true; len(t.up) == t.width {
			close(t.all)
		}
	}
}

// spawnPool runs one pool. up is the time until every runner listens, gone the time
// from the cancellation until none is left.
func spawnPool(ctx context.Context, width int, cmd []string) (up, gone time.Duration, err error) {
	t := &spawnCounter{up: make(map[string]bool), width: width, all: make(chan struct{})}
	pools := runnerpool.New(runnerpool.Config{Runners: map[string]runnerpool.RunnerConfig{"bench": {Cmd: cmd, PoolSize: width}}}, "bench", t, slog.New(slog.DiscardHandler))
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- pools.Run(running) }()
	select {
	case <-t.all:
		up = time.Since(began)
	case <-time.After(waitTimeout):
		err = fmt.Errorf("a pool of %d runners was not ready within %v: %+v", width, waitTimeout, pools.Status())
	case <-ctx.Done():
		err = ctx.Err()
	}
	began = time.Now()
	stop()
	err = errors.Join(err, <-done)
	return up, time.Since(began), err
}

// measureSpawns runs spawnRunners in a separate process.
func (b *bench) measureSpawns(t *task) (s spawned) {
	o := peerOptions{Name: "spawner", Spawns: b.share(spawnCount), Runner: must.Get(golang.command(b.Binary))}
	p := t.start(o.Name, t.newDir(), nil, o.command(b.self))
	must.Do(until(t, 5*waitTimeout, func() bool { return p.Ended() != nil }))
	lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
	if json.Unmarshal([]byte(lines[len(lines)-1]), &s) != nil || s.Spawns == 0 {
		must.Do(p.Ended())
	}
	return s
}
