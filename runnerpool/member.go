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

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
)

const (
	crashLoopExits  = 5 // exits within crashLoopWindow, without an answer in between, that make a crash loop
	crashLoopWindow = time.Minute
	probation       = 5 * time.Second // time a process of a crash loop must live before it is offered
	minRestartDelay = 100 * time.Millisecond
	maxRestartDelay = 30 * time.Second
	claimTries      = 5 // for a port that a previous process may be about to release
	claimInterval   = 50 * time.Millisecond
	minPollInterval = 10 * time.Millisecond // while a process starts to listen
	maxPollInterval = 200 * time.Millisecond
)

// member is one place in a pool. It keeps one process running.
type member struct {
	pools       *Pools
	runner      string
	cfg         RunnerConfig
	index       int
	log         *slog.Logger
	hasAnswered atomic.Bool // a request was answered since the last restartDelay
	stalled     atomic.Bool // Stalled was reported and Recovered was not

	// Guarded by Pools.mu, for status.
	worker       *worker // nil: down
	port         int     // current or last port; 0: none yet
	pid          int     // 0: no process
	restarts     int
	reason       string // why it is down or on probation
	crashLooping bool

	stalledChannel string // the channel that was reported as stalled; guarded by Pools.mu
}

// crashHistory records how a member's last processes ended.
type crashHistory struct {
	backoff backoff.Backoff
	exits   []time.Time // within crashLoopWindow and since the last answer
}

// run keeps the member's process running until ctx ends.
func (m *member) run(ctx context.Context) {
	history := crashHistory{backoff: backoff.Backoff{Base: minRestartDelay, Max: maxRestartDelay}}
	for {
		err := m.runProcess(ctx)
		if ctx.Err() != nil {
			m.setDown("")
			return
		}
		m.setDown(err.Error())
		pause := m.restartDelay(&history, err, time.Now())
		m.log.Warn("runner ended", "err", err, "restart_in", pause)
		if backoff.Sleep(ctx, pause) != nil {
			return
		}
		m.pools.mu.Lock()
		m.restarts++
		m.pools.mu.Unlock()
	}
}

// restartDelay returns how long to wait before the next process is started. The last
// one has ended at the time now because of err. restartDelay adds that end to history,
// which it first clears if the process had answered a request, and stops offering the
// member if the ends are a crash loop.
func (m *member) restartDelay(history *crashHistory, err error, now time.Time) time.Duration {
	if m.hasAnswered.Swap(false) {
		history.exits = nil
		history.backoff.Reset()
	}
	if errors.Is(err, errReplaced) {
		return 0 // the node ended it, and jobs wait for its successor
	}
	for len(history.exits) > 0 && now.Sub(history.exits[0]) > crashLoopWindow {
		history.exits = history.exits[1:]
	}
	history.exits = append(history.exits, now)
	if len(history.exits) >= crashLoopExits || m.isCrashLooping() { // in a crash loop the delays leave fewer exits in the window
		m.reportStalled(err)
	}
	return history.backoff.Next()
}

// runProcess runs one process from its start to its end. The error is why it
// ended.
func (m *member) runProcess(ctx context.Context) error {
	if m.pools.cfg.Management == External {
		return m.runExternal(ctx)
	}
	proc, port, err := m.start(ctx)
	if err != nil {
		return err
	}
	defer m.cleanUp(proc)
	if m.isCrashLooping() {
		if err := m.awaitProbation(ctx, proc); err != nil {
			return err
		}
	}
	addr := m.addr(port)
	m.log.Info("runner is up", "addr", addr, "pid", proc.pid)
	defer m.startTrial()()
	return newWorker(m, proc, addr, port).serve(ctx)
}

func (m *member) addr(port int) string { return net.JoinHostPort(m.cfg.TCPHost, strconv.Itoa(port)) }

// runExternal offers an external runner from when it accepts connections until it no
// longer does. The error is why it no longer does.
func (m *member) runExternal(ctx context.Context) error {
	addr := m.addr(m.cfg.TCPPort)
	if err := m.awaitExternal(ctx, addr); err != nil {
		return err
	}
	m.log.Info("external runner is up", "addr", addr)
	defer m.startTrial()()
	if err := newWorker(m, nil, addr, m.cfg.TCPPort).serve(ctx); err != nil {
		return fmt.Errorf("external runner at %s %w", addr, err)
	}
	return nil
}

// awaitExternal tries to connect to an external runner until that succeeds or ctx
// ends, whose error it returns. A runner that is away for the connect timeout is
// reported as stalled.
func (m *member) awaitExternal(ctx context.Context, addr string) error {
	start := time.Now()
	for pause := minPollInterval; ; pause = min(2*pause, probeInterval) {
		err := tryConnect(ctx, addr)
		if err == nil {
			return nil
		}
		err = fmt.Errorf("external runner at %s does not accept connections: %w", addr, err)
		m.setDown(err.Error())
		if time.Since(start) >= m.pools.connectTimeout() {
			m.reportStalled(err)
		}
		if err := backoff.Sleep(ctx, pause); err != nil {
			return err
		}
	}
}

// tryConnect connects to addr and closes the connection without sending anything.
func tryConnect(ctx context.Context, addr string) error {
	d := net.Dialer{Timeout: dialTimeout}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return conn.Close()
}

// errEarlyExit means that a process exited before it listened.
var errEarlyExit = errors.New("exited before it listened")

// start starts the member's process and returns it with its port once it listens.
// With [SocketAuto], a process that exits early is started again without the socket
// argument, which it may have refused. What works is kept for the next process.
func (m *member) start(ctx context.Context) (proc *process, port int, err error) {
	via := m.cfg.SocketVia
	if via == SocketAuto {
		via = SocketBoth
	}
	proc, port, err = m.startVia(ctx, via)
	_, fixed := withSocket(m.cfg.Cmd, "") // the command itself has a place for the address
	if m.cfg.SocketVia == SocketAuto && !fixed && errors.Is(err, errEarlyExit) {
		m.log.Warn("runner exited before it listened, starting it without "+socketArg, "err", err)
		first := err
		via = SocketEnv
		if proc, port, err = m.startVia(ctx, via); err != nil && err.Error() != first.Error() {
			err = fmt.Errorf("%w; without %s: %w", first, socketArg, err)
		}
	}
	if err == nil {
		m.cfg.SocketVia = via
	}
	return proc, port, err
}

// startVia is start for one way of passing the socket address.
func (m *member) startVia(ctx context.Context, via string) (*process, int, error) {
	proc, port, err := m.spawn(ctx, via)
	if err != nil {
		return nil, 0, err
	}
	if err := m.awaitListener(ctx, proc, m.addr(port), port); err != nil {
		m.cleanUp(proc)
		return nil, 0, err
	}
	return proc, port, nil
}

// spawn starts the member's process and returns it with its port. The process is
// passed its socket address by via.
func (m *member) spawn(ctx context.Context, via string) (*process, int, error) {
	port, err := m.claimPort(ctx)
	if err != nil {
		return nil, 0, err
	}
	m.pools.mu.Lock()
	m.port = port
	m.pools.mu.Unlock()
	marker := m.pools.groups.newMarker()
	cmd := command(&m.cfg, via, m.addr(port), marker)
	startCmd := func(cmd *exec.Cmd) error { return m.pools.spawner.start(ctx, cmd) }
	proc, err := startProcess(cmd, startCmd, &jobLog{
		runner: m.runner, single: m.cfg.MaxInFlight == 1, emit: m.pools.executor.Log, log: m.log.With("port", port),
	})
	if err != nil {
		return nil, 0, explainStartError(err, &m.cfg)
	}
	proc.marker = marker
	m.pools.mu.Lock()
	m.pid = proc.pid
	m.pools.mu.Unlock()
	if err := m.pools.groups.add(proc.pid, marker, workerName(m.runner, port)); err != nil {
		m.log.Warn("runner not recorded, processes it forks may survive the death of the node", "err", err)
	}
	return proc, port, nil
}

// claimPort returns the member's port once it is free. It never uses another
// one, which may belong to another node.
func (m *member) claimPort(ctx context.Context) (port int, err error) {
	for range claimTries {
		if port, err = probePort(m.cfg.TCPHost, m.cfg.port(m.index)); !errors.Is(err, errPortTaken) {
			return port, err
		}
		if err := backoff.Sleep(ctx, claimInterval); err != nil {
			return 0, err
		}
	}
	return 0, err
}

// awaitListener returns once the process itself, not another one, accepts
// connections on the port.
func (m *member) awaitListener(ctx context.Context, proc *process, addr string, port int) error {
	limit, cancel := context.WithTimeout(ctx, m.pools.connectTimeout())
	defer cancel()
	err := awaitConnectable(limit, addr, proc.exited)
	if err == nil {
		err = checkListener(port, proc.pid)
	}
	if err != nil && proc.hasExited() {
		return fmt.Errorf("%w: %s", errEarlyExit, proc.exitStatus)
	}
	return err
}

// awaitConnectable tries to connect to addr until it succeeds, the process has
// ended, which closes ended, or ctx ends.
func awaitConnectable(ctx context.Context, addr string, ended <-chan struct{}) error {
	lastErr := errors.New("no answer")
	for pause := minPollInterval; ; pause = min(2*pause, maxPollInterval) {
		err := tryConnect(ctx, addr)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			lastErr = err
		}
		select {
		case <-time.After(pause):
		case <-ended:
			return lastErr
		case <-ctx.Done():
			return fmt.Errorf("does not listen in time; does it take its socket from %s or %s? %w", socketEnv, socketArg, lastErr)
		}
	}
}

// awaitProbation waits until a process of a crash loop has lived long enough to
// be offered, and ends the crash loop.
func (m *member) awaitProbation(ctx context.Context, proc *process) error {
	timer := time.NewTimer(probation)
	defer timer.Stop()
	select {
	case <-timer.C:
		m.endCrashLoop()
		return nil
	case <-proc.exited:
		return errors.New(proc.exitStatus)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m *member) isCrashLooping() bool {
	m.pools.mu.Lock()
	defer m.pools.mu.Unlock()
	return m.crashLooping
}

// endCrashLoop makes the member be offered again.
func (m *member) endCrashLoop() {
	m.pools.mu.Lock()
	defer m.pools.mu.Unlock()
	m.crashLooping = false
}

// cleanUp ends a process and everything it has forked.
func (m *member) cleanUp(proc *process) {
	if !proc.hasExited() {
		proc.terminate(seconds(*m.pools.cfg.TermGrace))
	}
	<-proc.cleaned
	if n := killMarked(proc.marker); n > 0 {
		m.log.Warn("killed processes that had left the runner's group", "count", n)
	}
	if err := m.pools.groups.remove(proc.pid); err != nil {
		m.log.Warn("ended runner not removed from the record", "err", err)
	}
}

// setDown records that the member has no process, and why.
func (m *member) setDown(reason string) {
	m.pools.mu.Lock()
	defer m.pools.mu.Unlock()
	m.pid, m.worker, m.reason = 0, nil, reason
}

// reportStalled reports, once until it has recovered, a member whose processes fail
// repeatedly, the last one because of err, or whose external runner is away. Processes
// that fail are no longer offered.
func (m *member) reportStalled(err error) {
	reason := job.StalledCrashLoop
	switch {
	case m.pools.cfg.Management == External:
		reason = job.StalledUnreachable
	case errors.Is(err, errPortTaken):
		reason = job.StalledPortTaken
	case errors.Is(err, errStartFailed):
		reason = job.StalledCannotStart
	}
	m.pools.mu.Lock()
	defer m.pools.mu.Unlock()
	if reason == job.StalledCrashLoop {
		m.reason = fmt.Sprintf("crash loop, %d exits within %s; last: %v; see the node's log for its output", crashLoopExits, duration.Format(crashLoopWindow), err)
	}
	isNew := !m.stalled.Swap(true)
	if isNew || m.pools.cfg.Management == Managed && !m.crashLooping {
		m.log.Error("runner is failing, no jobs are offered to it", "reason", reason, "err", err)
	}
	m.crashLooping = m.pools.cfg.Management == Managed
	if isNew {
		m.stalledChannel = job.Channel(job.RRQ, workerName(m.runner, m.port))
		m.pools.executor.Stalled(m.stalledChannel, reason)
	}
}

// noteAnswered records that a request was answered, so the process works.
func (m *member) noteAnswered() {
	m.hasAnswered.Store(true)
	if m.stalled.Load() {
		m.reportRecovered()
	}
}

// startTrial makes a stalled member recover if its process lives for
// crashLoopWindow, even if it gets no requests. stop ends the trial.
func (m *member) startTrial() (stop func()) {
	if !m.stalled.Load() {
		return func() {}
	}
	trial := time.AfterFunc(crashLoopWindow, m.reportRecovered)
	return func() { trial.Stop() }
}

func (m *member) reportRecovered() {
	m.pools.mu.Lock()
	defer m.pools.mu.Unlock()
	if m.stalled.Swap(false) {
		m.log.Info("runner recovered")
		m.pools.executor.Recovered(m.stalledChannel, job.RecoveredProven)
	}
}
