package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"yardmaster/drill/yard"
	"yardmaster/job"
	"yardmaster/runnerpool"
)

// Spawns of a round, and how many of them are one pool's.
const (
	spawnCount = 1000
	spawnWidth = 25
)

// spawned is how spawning went.
type spawned struct {
	Spawns      int     `json:"spawns"`
	Took        float64 `json:"took_ms"`  // until all were up, without their ends
	Ended       float64 `json:"ended_ms"` // until all were gone
	Resident    int64   `json:"resident_bytes"`
	Descriptors int     `json:"descriptors"`
	Threads     int     `json:"threads"`
	Goroutines  int     `json:"goroutines"`
	Children    int     `json:"children"` // left behind
}

// spawnRunners is a process that is nothing but pools, one after the other,
// each with spawnWidth runners. It prints what grew meanwhile, as JSON. What the
// first pool wakes is no spawn's.
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

// selfPrint is what this process holds, after a collection.
func selfPrint() (s spawned) {
	runtime.GC()
	self := yard.Self()
	s.Resident, s.Descriptors, s.Threads, s.Children = self.Memory(), self.Descriptors(), self.Threads(), self.Children()
	s.Goroutines = runtime.NumGoroutine()
	return s
}

// turnstile hears of a pool's offers.
type turnstile struct {
	mu   sync.Mutex
	up   map[string]bool
	want int
	all  chan struct{} // closed when so many workers have had room
}

func (t *turnstile) Report(job.Outcome, func(job.Settled)) {}
func (t *turnstile) Stalled(_, _ string)                   {}
func (t *turnstile) Recovered(_, _ string)                 {}

func (t *turnstile) Log(job.LogLine) {}

func (t *turnstile) Offer(o job.Offer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.Free > 0 && !t.up[o.Worker] {
		if t.up[o.Worker] = true; len(t.up) == t.want {
			close(t.all)
		}
	}
}

// spawnPool runs one pool: up is from its begin until every runner listens,
// gone from the wish that it ends until none is left.
func spawnPool(ctx context.Context, width int, cmd []string) (up, gone time.Duration, err error) {
	t := &turnstile{up: make(map[string]bool), want: width, all: make(chan struct{})}
	pools := runnerpool.New(runnerpool.Config{Runners: map[string]runnerpool.RunnerConfig{"bench": {Cmd: cmd, PoolSize: width}}}, "bench", t, slog.New(slog.DiscardHandler))
	running, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	began := time.Now()
	go func() { done <- pools.Run(running) }()
	select {
	case <-t.all:
		up = time.Since(began)
	case <-time.After(patience):
		err = fmt.Errorf("a pool of %d was not up within %v: %+v", width, patience, pools.Status())
	case <-ctx.Done():
		err = ctx.Err()
	}
	began = time.Now()
	stop()
	err = errors.Join(err, <-done)
	return up, time.Since(began), err
}

// measureSpawns has a process of its own spawn runners.
func (b *bench) measureSpawns(ctx context.Context, dir string) (s spawned, err error) {
	cmd, err := golang.command(b.Binary)
	if err != nil {
		return s, err
	}
	o := PeerOptions{Name: "spawner", Spawns: b.share(spawnCount), Runner: cmd}
	dir, err = os.MkdirTemp(dir, "round-")
	if err != nil {
		return s, fmt.Errorf("make a directory: %w", err)
	}
	p, err := yard.StartProcess("spawner", filepath.Join(dir, "spawner.log"), nil, b.Binary, o.args()...)
	if err != nil {
		return s, err
	}
	defer p.Kill()
	if err := until(ctx, 5*patience, func() bool { return p.Ended() != nil }); err != nil {
		return s, fmt.Errorf("%d spawns: %w", o.Spawns, err)
	}
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return s, err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if json.Unmarshal([]byte(lines[len(lines)-1]), &s) != nil || s.Spawns == 0 {
		return s, p.Ended()
	}
	return s, nil
}
