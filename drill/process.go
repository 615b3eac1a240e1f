package drill

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/yardmaster-dev/yardmaster/drill/hosts"
)

// Process is a child process. Its methods must be called from one goroutine.
type Process struct {
	name string
	args []string
	env  []string
	log  string      // path of the output file
	host *hosts.Host // nil for this host

	cmd   *exec.Cmd
	ended chan struct{} // closed when it has exited
	err   error
}

// Start starts the process. Its output is appended to the log.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log of %s: %w", p.name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), p.env...), log, log
	// A separate process group keeps Ctrl-C from reaching it directly. The
	// process is killed when this one dies.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	start := cmd.Start
	if p.host != nil {
		start = func() error { return p.host.Start(cmd) }
	}
	if err := start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	ended := make(chan struct{})
	p.cmd, p.ended = cmd, ended
	go func() { p.err = cmd.Wait(); close(ended) }() // joined by Kill and Wait
	return nil
}

// Running reports whether the process has been started and has not exited.
func (p *Process) Running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Exiting reports whether the process has exited, or is a zombie whose threads wait
// in the kernel for a disk.
func (p *Process) Exiting() bool {
	if !p.Running() {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return true
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	return bytes.HasPrefix(rest, []byte("Z")) || bytes.HasPrefix(rest, []byte("X"))
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Tree returns the pids of the process and all its descendants.
func (p *Process) Tree() (pids []int, err error) {
	pids = []int{p.PID()}
	for i := 0; i < len(pids); i++ {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pids[i]))
		if err != nil {
			if i == 0 {
				return nil, fmt.Errorf("list the processes of %s: %w", p.name, err)
			}
			continue // it has exited
		}
		for _, t := range tasks {
			list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pids[i], t.Name())) // it may have exited
			for _, text := range strings.Fields(string(list)) {
				if pid, err := strconv.Atoi(text); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids, nil
}

// Signal sends a signal to the process.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Kill kills the process with SIGKILL and waits for its exit.
func (p *Process) Kill() {
	if p.Running() {
		p.cmd.Process.Kill()
		<-p.ended
	}
}

// Wait waits for the process to exit and returns its exit error.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("%s has not exited: %w", p.name, ctx.Err())
	}
}

// Log returns the output of the process so far.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
