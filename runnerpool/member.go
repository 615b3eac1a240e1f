package runnerpool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"strconv"
	"sync/atomic"
	"time"

	"yardmaster/internal/backoff"
)

const (
	loopEnds   = 5 // ends within loopWindow, with no answer in between, make a crash loop
	loopWindow = time.Minute
	probation  = 5 * time.Second // that a process of a crash loop must live before it is offered
	firstPause = 100 * time.Millisecond
	lastPause  = 30 * time.Second
	claimTries = 5 // for a port that a predecessor may be about to leave
	claimPause = 50 * time.Millisecond
	firstLook  = 10 * time.Millisecond // for a process that begins to listen
	lastLook   = 200 * time.Millisecond
)

// member is one place in a pool: it keeps one process alive.
type member struct {
	pools  *Pools
	runner string
	cfg    RunnerConfig
	index  int
	log    *slog.Logger
	proved atomic.Bool // a request has been answered since the last look
	stall  stall

	// Under the pools' lock, for status.
	worker   *worker // nil: down
	port     int     // the one it has, or had last; 0: none yet
	pid      int     // 0: no process
	restarts int
	reason   string // why it is down or on probation
	looping  bool
}

// record is how the last processes of a member fared.
type record struct {
	pause backoff.Backoff
	ends  []time.Time // within loopWindow and since the last answer
}

// run keeps the member's process alive until ctx ends.
func (m *member) run(ctx context.Context) {
	r := record{pause: backoff.Backoff{Base: firstPause, Max: lastPause}}
	for {
		err := m.live(ctx)
		if ctx.Err() != nil {
			m.down("")
			return
		}
		m.down(err.Error())
		pause := m.judge(&r, err, time.Now())
		m.log.Warn("runner ended", "err", err, "restart_in", pause)
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
		m.pools.mu.Lock()
		m.restarts++
		m.pools.mu.Unlock()
	}
}

// judge tells how long to wait before the next process.
func (m *member) judge(r *record, err error, now time.Time) time.Duration {
	if m.proved.Swap(false) {
		r.ends = nil
		r.pause.Reset()
	}
	if errors.Is(err, errReplaced) {
		return 0 // we ended it, and its successor is waited for
	}
	for len(r.ends) > 0 && now.Sub(r.ends[0]) > loopWindow {
		r.ends = r.ends[1:]
	}
	r.ends = append(r.ends, now)
	if len(r.ends) >= loopEnds || m.isLooping() { // pauses grow until few ends fit into the window
		m.stalled(err)
	}
	return r.pause.Next()
}

// live is one process's life, from its port to its last outcome.
func (m *member) live(ctx context.Context) error {
	if m.pools.cfg.Management == External {
		return m.visit(ctx)
	}
	proc, port, err := m.spawn(ctx)
	if err != nil {
		return err
	}
	defer m.bury(proc)
	addr := net.JoinHostPort(m.cfg.TCPHost, strconv.Itoa(port))
	if err := m.awaitListener(ctx, proc, addr, port); err != nil {
		return err
	}
	if m.isLooping() {
		if err := m.prove(ctx, proc); err != nil {
			return err
		}
	}
	m.log.Info("runner is up", "addr", addr, "pid", proc.pid)
	defer m.onTrial()()
	return newWorker(m, proc, addr, port).serve(ctx)
}

// visit is live for a runner that somebody else keeps.
func (m *member) visit(ctx context.Context) error {
	addr := net.JoinHostPort(m.cfg.TCPHost, strconv.Itoa(m.cfg.TCPPort))
	limit, cancel := context.WithTimeout(ctx, m.pools.connectTimeout())
	defer cancel()
	if err := connectable(limit, addr, nil); err != nil {
		return fmt.Errorf("external runner at %s: %w", addr, err)
	}
	m.log.Info("external runner is up", "addr", addr)
	m.trust()
	defer m.onTrial()()
	return newWorker(m, nil, addr, m.cfg.TCPPort).serve(ctx)
}

// spawn starts the member's process on its port.
func (m *member) spawn(ctx context.Context) (*process, int, error) {
	port, err := m.claim(ctx)
	if err != nil {
		return nil, 0, err
	}
	m.pools.mu.Lock()
	m.port = port
	m.pools.mu.Unlock()
	addr := net.JoinHostPort(m.cfg.TCPHost, strconv.Itoa(port))
	marker := m.pools.roster.mark()
	cmd := command(&m.cfg, addr, marker)
	by := func(cmd *exec.Cmd) error { return m.pools.spawner.start(ctx, cmd) }
	proc, err := start(cmd, by, &voices{
		runner: m.runner, single: m.cfg.MaxInFlight == 1, keep: m.pools.hands.Log, log: m.log.With("port", port),
	})
	if err != nil {
		return nil, 0, describeStart(err, &m.cfg)
	}
	proc.marker = marker
	m.pools.mu.Lock()
	m.pid = proc.pid
	m.pools.mu.Unlock()
	if err := m.pools.roster.enter(proc.pid, marker, workerName(m.runner, port)); err != nil {
		m.log.Warn("runner not listed: what it forks may survive a killed node", "err", err)
	}
	return proc, port, nil
}

// claim takes the member's own port. It never wanders off to another one: that
// may be a neighbour node's.
func (m *member) claim(ctx context.Context) (port int, err error) {
	for range claimTries {
		if port, err = claim(m.cfg.TCPHost, m.cfg.port(m.index)); !errors.Is(err, errPortTaken) {
			return port, err
		}
		if err := backoff.Sleep(ctx, claimPause); err != nil {
			return 0, err
		}
	}
	return 0, err
}

// awaitListener returns when the process takes connections, it and nobody
// else.
func (m *member) awaitListener(ctx context.Context, proc *process, addr string, port int) error {
	limit, cancel := context.WithTimeout(ctx, m.pools.connectTimeout())
	defer cancel()
	err := connectable(limit, addr, proc.exited)
	if err == nil {
		err = listener(port, proc.pid)
	}
	if err != nil && proc.hasExited() {
		return fmt.Errorf("ended before it listened: %s", proc.how)
	}
	return err
}

// connectable tries to connect until it succeeds or the runner has ended. The
// connection says nothing; runners take that.
func connectable(ctx context.Context, addr string, ended <-chan struct{}) error {
	var d net.Dialer
	last := errors.New("no answer")
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		conn, err := d.DialContext(ctx, "tcp", addr)
		if err == nil {
			return conn.Close()
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-time.After(pause):
		case <-ended:
			return last
		case <-ctx.Done():
			return fmt.Errorf("does not listen in time; does it take its socket from %s or %s? %w", socketEnv, socketArg, last)
		}
	}
}

// prove lets a process of a crash loop live for a while before it is trusted.
func (m *member) prove(ctx context.Context, proc *process) error {
	timer := time.NewTimer(probation)
	defer timer.Stop()
	select {
	case <-timer.C:
		m.trust()
		return nil
	case <-proc.exited:
		return errors.New(proc.how)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *member) isLooping() bool {
	m.pools.mu.Lock()
	defer m.pools.mu.Unlock()
	return m.looping
}

// trust ends a crash loop, as far as offers go.
func (m *member) trust() {
	m.pools.mu.Lock()
	defer m.pools.mu.Unlock()
	m.looping = false
}

// bury makes sure that nothing is left of a process.
func (m *member) bury(proc *process) {
	if !proc.hasExited() {
		proc.end(seconds(*m.pools.cfg.TermGrace))
	}
	<-proc.dead
	if n := sweep(proc.marker); n > 0 {
		m.log.Warn("processes that had left the runner's group ended", "processes", n)
	}
	if err := m.pools.roster.leave(proc.pid); err != nil {
		m.log.Warn("ended runner stays listed", "err", err)
	}
}

// down notes why there is no process.
func (m *member) down(reason string) {
	m.pools.mu.Lock()
	defer m.pools.mu.Unlock()
	m.pid, m.worker, m.reason = 0, nil, reason
}
