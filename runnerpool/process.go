package runnerpool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

const (
	groupPoll  = 10 * time.Millisecond  // interval of polling a group whose leader has ended
	outputTail = 200 * time.Millisecond // time for the last lines of a process that has ended
)

// process is one running runner, the leader of its process group.
type process struct {
	cmd        *exec.Cmd
	pid        int
	marker     string        // in its environment, and in that of processes it forks
	exited     chan struct{} // closed when the leader and its group have ended
	cleaned    chan struct{} // closed when its goroutines and pipes are released, too
	exitStatus string        // how it ended; set before exited is closed
	output     sync.WaitGroup
	pipes      [2]*os.File      // the node's ends of stdout and stderr
	taps       [2]*outputReader // readers of the pipes
	jobLog     *jobLog

	mu         crash.Mutex
	graceUntil time.Time // until when the group may outlive its leader; zero: not at all
	groupEnded bool      // the group has ended: its id may have been reused
}

// startProcess starts cmd by calling startCmd, with pipes for its output, and
// watches it. The output goes to log.
func startProcess(cmd *exec.Cmd, startCmd func(*exec.Cmd) error, log *jobLog) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{}), cleaned: make(chan struct{}), jobLog: log}
	var childEnds [2]*os.File
	for i := range p.pipes {
		var err error
		if p.pipes[i], childEnds[i], err = os.Pipe(); err != nil {
			closeAll(p.pipes[:i])
			closeAll(childEnds[:i])
			return nil, fmt.Errorf("make output pipe: %w", err)
		}
		p.taps[i] = newOutputReader(p.pipes[i])
	}
	cmd.Stdout, cmd.Stderr = childEnds[0], childEnds[1]
	err := startCmd(cmd)
	closeAll(childEnds[:])
	if err != nil {
		closeAll(p.pipes[:])
		return nil, err
	}
	p.pid = cmd.Process.Pid
	for i, stream := range [...]string{job.LogStdout, job.LogStderr} {
		p.output.Go(func() {
			readLines(p.taps[i], func(line []byte, cut bool) {
				defer crash.Contain(log.log, crash.Runner, nil) // the next lines are read, or the runner would block
				log.writeLine(stream, line, cut)
			})
		})
	}
	go p.watch() // ends with the process; the caller waits for cleaned
	return p, nil
}

// drainOutput returns when everything that the process has printed so far is in
// the job log, or after outputTail, because the log may be slow.
func (p *process) drainOutput() {
	timeout, cancel := context.WithTimeout(context.Background(), outputTail)
	defer cancel()
	for _, t := range p.taps {
		t.awaitHandled(timeout)
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // nothing is lost by an error
	}
}

// watch waits for the process to end, kills what is left of its group, sets
// exitStatus, and closes exited and cleaned. If the process was being
// terminated, the rest of its group may run until graceUntil.
func (p *process) watch() {
	p.awaitLeader()
	p.mu.Lock()
	deadline := p.graceUntil
	p.mu.Unlock()
	if deadline.IsZero() {
		// It ended by itself. The rest of the group is killed while the
		// unreaped leader still reserves the group's id.
		p.signal(syscall.SIGKILL)
	}
	state, err := p.cmd.Process.Wait()
	if err != nil {
		p.exitStatus = "ended: " + err.Error()
	} else {
		p.exitStatus = state.String()
	}
	for !deadline.IsZero() && p.signal(0) {
		if !time.Now().Before(deadline) {
			p.signal(syscall.SIGKILL)
			if len(groupMembers(p.pid)) == 0 {
				break // the rest are zombies, for their new parent to reap
			}
		}
		time.Sleep(groupPoll) // the processes are not children, so they can only be polled
	}
	p.mu.Lock()
	p.groupEnded = true
	p.mu.Unlock()
	close(p.exited)
	for _, pipe := range p.pipes {
		// A process that has left the group may keep the other end open for
		// ever.
		_ = pipe.SetReadDeadline(time.Now().Add(outputTail)) // fails only on a closed pipe
	}
	p.output.Wait()
	closeAll(p.pipes[:])
	close(p.cleaned)
}

// awaitLeader returns when the leader has ended, without reaping it.
func (p *process) awaitLeader() {
	for {
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, syscall.EINTR) {
			return // ended, or not a child: then Wait returns an error
		}
	}
}

// terminate sends SIGTERM to the group and, after grace, SIGKILL, and returns
// when the leader and the group have ended. A grace of 0 kills at once.
func (p *process) terminate(grace time.Duration) {
	deadline := time.Now().Add(grace)
	p.mu.Lock()
	if p.graceUntil.IsZero() || deadline.Before(p.graceUntil) {
		p.graceUntil = deadline
	}
	p.mu.Unlock()
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		p.kill()
		<-p.exited
	}
}

// kill kills the group.
func (p *process) kill() {
	p.mu.Lock()
	p.graceUntil = time.Now()
	p.mu.Unlock()
	p.signal(syscall.SIGKILL)
}

// signal sends s to the group. It returns false if the group has ended.
func (p *process) signal(s syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.groupEnded && syscall.Kill(-p.pid, s) == nil
}

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// spawner starts processes from one thread that lives as long as the pools. The
// kernel sends a child's parent-death signal when the thread that forked it
// exits, and the Go runtime may end any other thread: its children could be
// killed while they work.
type spawner chan func()

// run calls the functions that start sends, until ctx ends. It never unlocks the
// thread, so that the thread exits with the goroutine, and with it any child that
// is left.
func (s spawner) run(ctx context.Context) {
	runtime.LockOSThread()
	for {
		select {
		case startChild := <-s:
			startChild()
		case <-ctx.Done():
			return
		}
	}
}

// start starts cmd in a new process group, from the thread of run.
func (s spawner) start(ctx context.Context, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	select {
	case s <- func() { started <- cmd.Start() }:
		return <-started
	case <-ctx.Done():
		return ctx.Err()
	}
}

// command returns the command of a member's process, with its socket address
// at most once in the arguments and in the environment, as via demands.
// Processes that it forks inherit marker in their environment.
func command(r *RunnerConfig, via, addr, marker string) *exec.Cmd {
	args, given := withSocket(r.Cmd, addr)
	if !given && via != SocketEnv {
		args = append(args, socketArg, addr)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = r.Cwd
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); r.inherits(name) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	for k, v := range r.Env {
		if k != socketEnv && k != markerEnv {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	if via != SocketArg {
		cmd.Env = append(cmd.Env, socketEnv+"="+addr)
	}
	cmd.Env = append(cmd.Env, marker)
	return cmd
}

// withSocket inserts the socket address where the arguments have a place for
// it, and reports whether there was one. An explicit --tcp-socket is such a
// place, because runtimes differ in which of two values they use.
func withSocket(cmd []string, addr string) (args []string, found bool) {
	for i, arg := range cmd {
		switch {
		case i > 0 && cmd[i-1] == socketArg:
			arg, found = addr, true
		case strings.HasPrefix(arg, socketArg+"="):
			arg, found = socketArg+"="+addr, true
		case strings.Contains(arg, socketPlaceholder):
			arg, found = strings.ReplaceAll(arg, socketPlaceholder, addr), true
		}
		args = append(args, arg)
	}
	return args, found
}

// errStartFailed means that a process could not be started.
var errStartFailed = errors.New("start runner")

// explainStartError adds to an error of starting a process what to check.
func explainStartError(err error, r *RunnerConfig) error {
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		if r.Cwd != "" {
			if _, statErr := os.Stat(r.Cwd); statErr != nil {
				return fmt.Errorf("%w: working directory %s does not exist; check cwd: %w", errStartFailed, r.Cwd, err)
			}
		}
		return fmt.Errorf("%w: program %s not found; check cmd and PATH: %w", errStartFailed, r.Cmd[0], err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: %s may not be executed; check its mode: %w", errStartFailed, r.Cmd[0], err)
	}
	return fmt.Errorf("%w: %w", errStartFailed, err)
}

// errPortTaken means that another process uses the port.
var errPortTaken = errors.New("port is in use by another process; free it or change tcp_port")

// probePort checks that a port can be bound, or chooses a free one if port is
// 0. Another process may still bind it before the runner does, which
// [checkListener] detects.
func probePort(host string, port int) (int, error) {
	ln, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return 0, fmt.Errorf("port %d: %w", port, errPortTaken)
		}
		return 0, fmt.Errorf("probe port %d: %w", port, err)
	}
	port = ln.Addr().(*net.TCPAddr).Port
	return port, ln.Close()
}
