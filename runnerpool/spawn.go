package runnerpool

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// spawner starts processes from one thread that lives as long as the pools. The
// kernel sends a child's parent-death signal when the thread that forked it
// exits, and the Go runtime may end any other thread: its children could be
// killed while they work.
type spawner struct {
	calls chan spawnCall
}

type spawnCall struct {
	cmd  *exec.Cmd
	done chan error
}

func newSpawner() *spawner { return &spawner{calls: make(chan spawnCall)} }

// run handles calls of start until ctx ends. It never unlocks the thread, so
// that the thread exits with the goroutine, and with it any child that is left.
func (s *spawner) run(ctx context.Context) {
	runtime.LockOSThread()
	for {
		select {
		case call := <-s.calls:
			call.done <- call.cmd.Start()
		case <-ctx.Done():
			return
		}
	}
}

// start starts cmd in a new process group, from the thread of run.
func (s *spawner) start(ctx context.Context, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	call := spawnCall{cmd: cmd, done: make(chan error, 1)}
	select {
	case s.calls <- call:
		return <-call.done
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withheldEnv are variables of the node's environment that runners do not
// inherit: the socket and marker of a node that is itself a runner, and the
// yard's secrets.
var withheldEnv = []string{socketEnv, markerEnv, "YARD_CLUSTER_SECRET", "YARD_SERVER_TOKEN", "YARD_HTTP_TOKEN"}

// command returns the command of a member's process, with its socket address
// exactly once in the arguments and in the environment, as configured.
// Processes that it forks inherit marker in their environment.
func command(r *RunnerConfig, addr, marker string) *exec.Cmd {
	args, given := withSocket(r.Cmd, addr)
	if !given && r.SocketVia != SocketEnv {
		args = append(args, socketArg, addr)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = r.Cwd
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !slices.Contains(withheldEnv, name) {
			cmd.Env = append(cmd.Env, v)
		}
	}
	for k, v := range r.Env {
		if k != socketEnv && k != markerEnv {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	if r.SocketVia != SocketArg {
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
