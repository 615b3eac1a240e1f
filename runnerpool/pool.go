package runnerpool

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Executor is the node's agent as the pools see it. Its methods must not call
// back into the pools.
type Executor interface {
	// Offer announces how many jobs a runner takes, as an absolute number. Free
	// 0 withdraws the offer.
	Offer(o job.Offer)
	// Report reports a dispatch's outcome, exactly once for each that was
	// started. done may be nil.
	Report(o job.Outcome, done func(job.Settled))
	// Stalled reports that a runner, named by its channel, has stopped working,
	// and Recovered that it works again; see [job.WorkerEvent].
	Stalled(worker, reason string)
	Recovered(worker, recovery string)
	// Log records a line of a dispatch's log. It never blocks.
	Log(l job.LogLine)
}

// ErrInit is returned by [Pools.Run] if the node is process 1.
var ErrInit = errors.New("a node with managed runners must not be process 1: some runtimes treat a parent with pid 1 as dead, and processes that runners fork would not be reaped; start the container with an init (docker run --init, compose init: true)")

// Pools manages all runner pools of a node.
type Pools struct {
	cfg          Config
	node         string
	executor     Executor
	log          *slog.Logger
	spawner      spawner
	groups       *groupFile
	members      []*member
	correlations []correlation // of the table; see correlate

	mu       crash.Mutex
	workers  map[string]*worker // by name; only those that accept dispatches
	running  map[job.DispatchID]*dispatch
	draining bool
	active   sync.WaitGroup // one for each entry of running; none is added once draining is set
}

// New returns the pools of cfg, which must be valid, for the node of the given
// name. It starts nothing.
func New(cfg Config, node string, executor Executor, log *slog.Logger) *Pools {
	p := &Pools{
		cfg:          cfg.withDefaults(),
		node:         node,
		executor:     executor,
		log:          log,
		spawner:      make(spawner),
		groups:       newGroupFile(cfg.Dir),
		correlations: cfg.correlations(),
		workers:      make(map[string]*worker),
		running:      make(map[job.DispatchID]*dispatch),
	}
	for _, name := range p.cfg.RunnerNames() {
		rc := p.cfg.Runners[name]
		for i := range rc.PoolSize {
			p.members = append(p.members, &member{
				pools: p, runner: name, cfg: rc, index: i,
				log:    log.With("runner", name, "member", i),
				reason: "not started yet", port: rc.port(i),
			})
		}
	}
	return p
}

// Run starts the processes and keeps them running until ctx ends. Then it
// withdraws all offers, lets running dispatches finish within the shutdown
// grace, stops the rest, and returns when every process has ended. The only
// error is [ErrInit]: a runner that cannot be started is reported by Status.
func (p *Pools) Run(ctx context.Context) error {
	if p.managed() && os.Getpid() == 1 {
		return ErrInit
	}
	if reaped, err := p.groups.reap(); err != nil {
		p.log.Warn("cannot end runners of a previous process of this node", "err", err)
	} else if reaped > 0 {
		p.log.Warn("killed runners of a previous process of this node", "count", reaped)
	}
	base := context.WithoutCancel(ctx)
	spawnCtx, stopSpawning := context.WithCancel(base)
	memberCtx, stopMembers := context.WithCancel(base)
	defer stopSpawning()
	defer stopMembers()
	var spawning, running sync.WaitGroup
	spawning.Go(func() { p.spawner.run(spawnCtx) })
	if p.managed() && len(p.cfg.Warden) > 0 {
		spawning.Go(func() { p.superviseWarden(spawnCtx) })
	}
	for _, m := range p.members {
		running.Go(func() { m.run(memberCtx) })
	}
	<-ctx.Done()
	p.drain()
	stopMembers()
	running.Wait()
	stopSpawning()
	spawning.Wait()
	return nil
}

// managed reports whether the node starts processes itself.
func (p *Pools) managed() bool { return len(p.members) > 0 && p.cfg.Management == Managed }

// drain withdraws all offers, recalls the dispatches that do not finish within
// the shutdown grace, and returns when nothing runs any more.
func (p *Pools) drain() {
	p.mu.Lock()
	p.draining = true
	for _, w := range p.workers {
		p.offer(w)
	}
	p.mu.Unlock()
	idle := make(chan struct{})
	go func() {
		p.active.Wait()
		close(idle)
	}()
	grace := time.NewTimer(seconds(*p.cfg.ShutdownGrace))
	defer grace.Stop()
	select {
	case <-idle:
		return
	case <-grace.C:
	}
	p.mu.Lock()
	for _, d := range p.running {
		d.recall(job.RecallShutdown)
	}
	p.mu.Unlock()
	<-idle
}

// Kind returns the job kind that the pools run.
func (p *Pools) Kind() job.Kind { return job.RRQ }

// Start starts a dispatch and returns at once. It returns false, without
// effect, if the runner is gone or has no free slot. It returns true for a
// dispatch that is already running.
func (p *Pools) Start(a job.Assignment, spec job.Spec) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := a.DispatchID()
	if p.running[k] != nil {
		return true
	}
	w := p.workers[a.Worker]
	if w == nil || p.available(w) == 0 || a.Key != w.m.runner {
		return false
	}
	d := newDispatch(a, spec, w, seconds(p.cfg.DefaultTimeout))
	p.running[k] = d
	p.active.Add(1)
	w.free--
	w.busy++
	p.offer(w)
	w.work <- d
	return true
}

// Stop recalls a running dispatch; its outcome is still reported. An unknown
// dispatch is ignored.
func (p *Pools) Stop(r job.Recall) {
	p.mu.Lock()
	d := p.running[r.DispatchID()]
	p.mu.Unlock()
	if d == nil {
		return
	}
	d.recall(r.Reason)
	p.mu.Lock()
	killNow := d.stuck && r.Reason == job.RecallLease
	p.mu.Unlock()
	if killNow {
		d.w.proc.kill() // its process is being terminated with a grace, which the lease does not allow
	}
}

// finish ends a dispatch: it offers the slot again and reports the outcome.
func (p *Pools) finish(d *dispatch, o job.Outcome) {
	p.mu.Lock()
	delete(p.running, d.DispatchID())
	w := d.w
	w.free++
	w.busy--
	if d.stuck {
		w.stuck--
	}
	if !w.retired {
		p.offer(w)
	}
	w.signalOnlyStuck()
	p.active.Done()
	p.mu.Unlock()
	p.executor.Report(o, nil)
}

// offer announces a worker's free slots. Pools.mu is held, so that the offers
// are in order.
func (p *Pools) offer(w *worker) {
	p.executor.Offer(job.Offer{Kind: job.RRQ, Key: w.m.runner, Worker: w.name, Free: p.available(w)})
}

// available returns how many dispatches a worker can take now: none, as soon as
// its end is known. Pools.mu is held.
func (p *Pools) available(w *worker) int {
	if p.draining || w.drained || w.retired || w.replaceErr != nil || w.hasExited() {
		return 0
	}
	return w.free
}

// SetDrained drains the process of a channel, or resumes it. A drained process is given no
// more dispatches and finishes those that it runs; one that replaces it is not drained.
// SetDrained returns the number of those that it runs, and false if there is no such
// process.
func (p *Pools) SetDrained(channel string, drained bool) (running int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.workers[strings.TrimPrefix(channel, job.Channel(job.RRQ, ""))]
	if w == nil {
		return 0, false
	}
	w.drained = drained
	p.offer(w)
	return w.busy, true
}

// addWorker starts to offer a worker.
func (p *Pools) addWorker(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers[w.name] = w
	w.m.worker, w.m.reason = w, ""
	p.offer(w)
}

// removeWorker withdraws a worker's offer for good. It returns why the process
// is to be replaced, nil if it is not. The member reports that cause rather
// than the exit status that follows from it.
func (p *Pools) removeWorker(w *worker) (cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.retired = true
	delete(p.workers, w.name)
	w.m.worker = nil
	if w.replaceErr != nil {
		w.m.reason = w.replaceErr.Error()
	}
	p.offer(w)
	return w.replaceErr
}

// setDeadline ends the waits of all dispatches of a worker at t.
func (p *Pools) setDeadline(w *worker, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.running {
		if d.w == w {
			d.setDeadline(t)
		}
	}
}

func (p *Pools) connectTimeout() time.Duration {
	return time.Duration(p.cfg.ConnectTimeoutMS) * time.Millisecond
}

// Status returns the pools sorted by name.
func (p *Pools) Status() []api.Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var pools []api.Pool
	for _, m := range p.members { // sorted by pool
		if n := len(pools); n == 0 || pools[n-1].Runner != m.runner {
			pools = append(pools, api.Pool{Runner: m.runner, Managed: p.cfg.Management == Managed})
		}
		pool := &pools[len(pools)-1]
		s := m.status()
		pool.Size++
		pool.Members = append(pool.Members, s)
		pool.InFlight += s.InFlight
		if s.Drained {
			pool.Drained++
			pool.Slots += s.InFlight
		} else {
			pool.Slots += s.Slots
		}
		if s.Worker != "" {
			pool.Up++
		} else if pool.Reason == "" {
			pool.Reason = s.Reason
		}
		if s.CrashLooping {
			pool.CrashLooping++
		}
	}
	return pools
}

// status returns the member's state. Pools.mu is held.
func (m *member) status() api.PoolProcess {
	s := api.PoolProcess{Port: m.port, PID: m.pid, Restarts: m.restarts, CrashLooping: m.crashLooping, Reason: m.reason}
	if w := m.worker; w != nil {
		s.Worker, s.Slots, s.InFlight = w.name, m.cfg.MaxInFlight, w.busy
		s.Drained = w.drained
	}
	return s
}
