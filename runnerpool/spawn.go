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

// spawner starts processes from one thread that lives as long as the pools.
// The kernel ties a child's parent-death signal to the thread that forked it,
// and Go ends threads as it likes: a child born on any other one could be
// killed in the middle of its work.
type spawner struct {
	calls chan spawnCall
}

type spawnCall struct {
	cmd  *exec.Cmd
	done chan error
}

func newSpawner() *spawner { return &spawner{calls: make(chan spawnCall)} }

// run serves start until ctx ends. It never unlocks: the thread goes with the
// goroutine, and takes with it what should have been ended before.
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

// start starts cmd in a process group of its own.
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

// withheld are variables of the node that no runner gets by itself: the socket
// and marker of a runner that the node may be, and the yard's secrets.
var withheld = []string{socketEnv, markerEnv, "YARD_CLUSTER_SECRET", "YARD_SERVER_TOKEN", "YARD_HTTP_TOKEN"}

// command builds a member's process: its arguments and environment hold the
// socket once each, however the configuration wants it told. marker is found
// again in the environment of whatever the process forks.
func command(r *RunnerConfig, addr, marker string) *exec.Cmd {
	args, given := withSocket(r.Cmd, addr)
	if !given && r.SocketVia != SocketEnv {
		args = append(args, socketArg, addr)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = r.Cwd
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !slices.Contains(withheld, name) {
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

// withSocket puts a process's own socket where the command has a place for it,
// and tells whether there was one. A socket written out by hand, as RRQ's users
// know it, is such a place: the runtimes do not agree on which of two they
// take.
func withSocket(cmd []string, addr string) (args []string, given bool) {
	for i, arg := range cmd {
		switch {
		case i > 0 && cmd[i-1] == socketArg:
			arg, given = addr, true
		case strings.HasPrefix(arg, socketArg+"="):
			arg, given = socketArg+"="+addr, true
		case strings.Contains(arg, socketPlaceholder):
			arg, given = strings.ReplaceAll(arg, socketPlaceholder, addr), true
		}
		args = append(args, arg)
	}
	return args, given
}

// errNoStart tells of a process that could not be started at all.
var errNoStart = errors.New("start runner")

// describeStart tells what to do about that.
func describeStart(err error, r *RunnerConfig) error {
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		if r.Cwd != "" {
			if _, statErr := os.Stat(r.Cwd); statErr != nil {
				return fmt.Errorf("%w: working directory %s does not exist; check cwd: %w", errNoStart, r.Cwd, err)
			}
		}
		return fmt.Errorf("%w: program %s not found; check cmd and PATH: %w", errNoStart, r.Cmd[0], err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("%w: %s may not be executed; check its mode: %w", errNoStart, r.Cmd[0], err)
	}
	return fmt.Errorf("%w: %w", errNoStart, err)
}

// errPortTaken tells of a port that somebody else has.
var errPortTaken = errors.New("port is in use by another process; free it or change tcp_port")

// claim makes sure that a port can be bound, or picks a free one for 0. Only
// the child's own bind can be sure: what happens in between is noticed by
// [listener].
func claim(host string, port int) (int, error) {
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
