package runnerpool

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"yardmaster/job"
)

// Hands is what the pools need of the agent that feeds them. No method may
// call back into the pools.
type Hands interface {
	// Offer announces the absolute room of one worker; Free 0 withdraws it.
	Offer(o job.Offer)
	// Report hands over a dispatch's outcome, exactly once for each started
	// one. then may be nil.
	Report(o job.Outcome, then func(job.Settled))
	// Stalled and Recovered tell of a runner, by its channel, that has stopped
	// working, and that works again; see [job.Note].
	Stalled(worker, reason string)
	Recovered(worker, recovery string)
	// Log hands over a line of a dispatch's log. It never waits.
	Log(l job.LogLine)
}

// ErrInit refuses to run as process 1.
var ErrInit = errors.New("a node with managed runners must not be process 1: some runtimes take a parent of pid 1 for a dead one, and nobody would reap what runners fork; start the container with an init (docker run --init, compose init: true)")

// Pools are all runner pools of a node.
type Pools struct {
	cfg     Config
	node    string
	hands   Hands
	log     *slog.Logger
	spawner *spawner
	roster  *roster
	members []*member
	known   []correlation // what jobs are to be known by

	mu       sync.Mutex
	workers  map[string]*worker // by name; only those that take dispatches
	running  map[key]*dispatch
	draining bool
	idle     chan struct{} // told when draining and nothing runs
}

// key names a dispatch.
type key struct {
	id job.ID
	n  uint32
}

// New prepares the pools of cfg, which has been validated, for the node of
// that name. Nothing is started before Run.
func New(cfg Config, node string, hands Hands, log *slog.Logger) *Pools {
	p := &Pools{
		cfg:     cfg.withDefaults(),
		node:    node,
		hands:   hands,
		log:     log,
		spawner: newSpawner(),
		roster:  newRoster(cfg.Dir),
		known:   cfg.correlations(),
		workers: make(map[string]*worker),
		running: make(map[key]*dispatch),
		idle:    make(chan struct{}, 1),
	}
	for _, name := range p.cfg.Names() {
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

// Run starts the processes and keeps them until ctx ends. Then it withdraws
// all offers, lets running dispatches finish within the shutdown grace, stops
// the rest, and returns when every process is gone. The only error is
// [ErrInit]: a runner that cannot be started is told by Status.
func (p *Pools) Run(ctx context.Context) error {
	if p.managed() && os.Getpid() == 1 {
		return ErrInit
	}
	if reaped, err := p.roster.reap(); err != nil {
		p.log.Warn("former runners not reaped", "err", err)
	} else if reaped > 0 {
		p.log.Warn("runners of a former life of this node ended", "processes", reaped)
	}
	base := context.WithoutCancel(ctx)
	birth, stopBirth := context.WithCancel(base)
	life, stopLife := context.WithCancel(base)
	defer stopBirth()
	defer stopLife()
	var births, lives sync.WaitGroup
	births.Go(func() { p.spawner.run(birth) })
	if p.managed() && len(p.cfg.Warden) > 0 {
		births.Go(func() { p.keepWarden(birth) })
	}
	for _, m := range p.members {
		lives.Go(func() { m.run(life) })
	}
	<-ctx.Done()
	p.drain()
	stopLife()
	lives.Wait()
	stopBirth()
	births.Wait()
	return nil
}

// managed tells whether there are processes of our own.
func (p *Pools) managed() bool { return len(p.members) > 0 && p.cfg.Management == Managed }

// drain returns when nothing runs any more.
func (p *Pools) drain() {
	p.mu.Lock()
	p.draining = true
	for _, w := range p.workers {
		p.offer(w)
	}
	p.tellIdle()
	p.mu.Unlock()
	grace := time.NewTimer(seconds(*p.cfg.ShutdownGrace))
	defer grace.Stop()
	select {
	case <-p.idle:
		return
	case <-grace.C:
	}
	p.mu.Lock()
	for _, d := range p.running {
		d.recall(job.RecallShutdown)
	}
	p.mu.Unlock()
	<-p.idle
}

// tellIdle wakes drain. The lock is held.
func (p *Pools) tellIdle() {
	if !p.draining || len(p.running) > 0 {
		return
	}
	select {
	case p.idle <- struct{}{}:
	default: // it has been told already
	}
}

// Kind tells the agent what the pools run.
func (p *Pools) Kind() job.Kind { return job.RRQ }

// Start begins a dispatch and returns at once. False: its worker is gone or
// has no free slot, and it never started. A dispatch that runs already is not
// started again.
func (p *Pools) Start(a job.Assignment, spec job.Spec) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := key{a.Job, a.N}
	if p.running[k] != nil {
		return true
	}
	w := p.workers[a.Worker]
	if w == nil || p.room(w) == 0 || a.Key != w.m.runner {
		return false
	}
	d := newDispatch(a, spec, w, seconds(p.cfg.DefaultTimeout))
	p.running[k] = d
	w.free--
	w.busy++
	p.offer(w)
	w.work <- d
	return true
}

// Stop recalls a running dispatch; its outcome is still reported. Unknown ones
// are ignored.
func (p *Pools) Stop(id job.ID, n uint32, why job.RecallReason) {
	p.mu.Lock()
	d := p.running[key{id, n}]
	p.mu.Unlock()
	if d == nil {
		return
	}
	d.recall(why)
	p.mu.Lock()
	hurry := d.stuck && why == job.RecallLease
	p.mu.Unlock()
	if hurry {
		d.w.proc.kill() // it is being ended already, but with a grace there is no time for
	}
}

// finish ends a dispatch: its slot is offered again, its outcome reported.
func (p *Pools) finish(d *dispatch, o job.Outcome) {
	p.mu.Lock()
	delete(p.running, key{d.Job, d.N})
	w := d.w
	w.free++
	w.busy--
	if d.stuck {
		w.stuck--
	}
	if !w.retired {
		p.offer(w)
	}
	w.tellCalm()
	p.tellIdle()
	p.mu.Unlock()
	p.hands.Report(o, nil)
}

// offer announces a worker's room. The lock is held, so that the last word is
// the latest.
func (p *Pools) offer(w *worker) {
	p.hands.Offer(job.Offer{Kind: job.RRQ, Key: w.m.runner, Worker: w.name, Free: p.room(w)})
}

// room is what a worker can take now: nothing, as soon as its end is known.
// The lock is held.
func (p *Pools) room(w *worker) int {
	if p.draining || w.retired || w.sentence != nil || w.hasExited() {
		return 0
	}
	return w.free
}

// open lets a worker take dispatches.
func (p *Pools) open(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.workers[w.name] = w
	w.m.worker, w.m.reason = w, ""
	p.offer(w)
}

// retire takes a worker's offer back for good, and gives its sentence, if there
// is one: who was condemned has not just ended, even if that is quick.
func (p *Pools) retire(w *worker) (sentence error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.retired = true
	delete(p.workers, w.name)
	w.m.worker = nil
	p.offer(w)
	return w.sentence
}

// interrupt ends the waits of all dispatches at a worker at t.
func (p *Pools) interrupt(w *worker, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, d := range p.running {
		if d.w == w {
			d.interrupt(t)
		}
	}
}

func (p *Pools) connectTimeout() time.Duration {
	return time.Duration(p.cfg.ConnectTimeoutMS) * time.Millisecond
}
