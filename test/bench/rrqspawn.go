package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool"
	"github.com/yardmaster-dev/yardmaster/test/must"
	"github.com/yardmaster-dev/yardmaster/test/procstat"
)

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
	mu   sync.Mutex
	up   map[string]bool
	want int
	all  chan struct{} // closed when want runners have offered free slots
}

func (t *spawnCounter) Report(job.Outcome, func(job.Settled)) {}
func (t *spawnCounter) Stalled(_, _ string)                   {}
func (t *spawnCounter) Recovered(_, _ string)                 {}

func (t *spawnCounter) Log(job.LogLine) {}

func (t *spawnCounter) Offer(o job.Offer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.Free > 0 && !t.up[o.Worker] {
		if t.up[o.Worker] = true; len(t.up) == t.want {
			close(t.all)
		}
	}
}

// spawnPool runs one pool. up is the time until every runner listens, gone the time
// from the cancellation until none is left.
func spawnPool(ctx context.Context, width int, cmd []string) (up, gone time.Duration, err error) {
	t := &spawnCounter{up: make(map[string]bool), want: width, all: make(chan struct{})}
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
