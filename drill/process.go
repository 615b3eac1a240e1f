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

	"yardmaster/drill/hosts"
)

// Process is a child of ours. Its methods are for one goroutine.
type Process struct {
	name string
	args []string
	env  []string
	log  string
	host *hosts.Host // nil: this one

	cmd   *exec.Cmd
	ended chan struct{}
	err   error
}

// Start starts it, appending what it says to its log.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open log of %s: %w", p.name, err)
	}
	defer log.Close()
	cmd := exec.Command(p.args[0], p.args[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), p.env...), log, log
	// In a group of its own, so that a Ctrl-C reaches it through us only; and it
	// dies with us whatever happens to us.
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
	go func() { p.err = cmd.Wait(); close(ended) }() // joined by whoever waits on ended
	return nil
}

// Running tells that it was started and has not ended.
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

// Ending tells that it has ended, or would have, were the kernel not holding a
// part of it that waits for a disk.
func (p *Process) Ending() bool {
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

// PID is its number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Family is its number and those of all that it has started and what they have.
func (p *Process) Family() (pids []int, err error) {
	pids = []int{p.PID()}
	for i := 0; i < len(pids); i++ {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pids[i]))
		if err != nil {
			if i == 0 {
				return nil, fmt.Errorf("list the processes of %s: %w", p.name, err)
			}
			continue // it has ended
		}
		for _, t := range tasks {
			list, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pids[i], t.Name())) // likewise
			for _, text := range strings.Fields(string(list)) {
				if pid, err := strconv.Atoi(text); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids, nil
}

// Signal sends a signal to it.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Kill ends it with SIGKILL and waits for its end.
func (p *Process) Kill() {
	if p.Running() {
		p.cmd.Process.Kill()
		<-p.ended
	}
}

// Wait waits for its end and gives its exit error.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.ended:
		return p.err
	case <-ctx.Done():
		return fmt.Errorf("%s has not ended: %w", p.name, ctx.Err())
	}
}

// Log is what it has said so far.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
