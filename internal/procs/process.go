package procs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Process is a program that can be started, stopped and started again. Start, Kill,
// Term, Stop, Running and UnexpectedExit may be called at any time, the other methods
// only after the first start. All are safe for concurrent use.
type Process struct {
	Name    string
	Args    []string // the program and its arguments
	Env     []string // added to the environment of this process
	LogFile string   // to which output is appended

	// Launch starts the command, for example in another network namespace; nil
	// calls its method Start.
	Launch func(*exec.Cmd) error

	lastRun atomic.Pointer[execution] // nil before the first start
}

// execution is one execution of a process.
type execution struct {
	cmd       *exec.Cmd
	ended     chan struct{} // closed when it has exited
	err       error         // its exit error; valid after ended
	term      sync.Once     // sends SIGTERM
	requested atomic.Bool   // whether its exit was requested
}

// StartProcess starts a program with env added to the environment of this process.
func StartProcess(name, logFile string, env []string, program string, args ...string) (*Process, error) {
	p := &Process{Name: name, LogFile: logFile, Env: env, Args: append([]string{program}, args...)}
	return p, p.Start()
}

// Start starts the process, for the first time or again. The process runs in its
// own process group, so that Ctrl-C does not reach it directly, and is killed when
// this process dies.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.LogFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", p.Name, err)
	}
	defer log.Close() // the child has its own descriptor
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), p.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	launch := p.Launch
	if launch == nil {
		launch = (*exec.Cmd).Start
	}
	if err := launch(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	e := &execution{cmd: cmd, ended: make(chan struct{})}
	p.lastRun.Store(e)
	go func() { // ends with the process; Kill, Stop and Wait wait for it
		e.err = cmd.Wait()
		close(e.ended)
	}()
	return nil
}

// Running reports whether the process has been started and has not exited.
func (p *Process) Running() bool {
	e := p.lastRun.Load()
	return e != nil && !e.hasEnded()
}

func (e *execution) hasEnded() bool {
	select {
	case <-e.ended:
		return true
	default:
		return false
	}
}

// PID returns the id of the process.
func (p *Process) PID() int { return p.lastRun.Load().cmd.Process.Pid }

// Signal sends a signal to the process.
func (p *Process) Signal(s syscall.Signal) error { return p.lastRun.Load().cmd.Process.Signal(s) }

// Kill kills the process, if it has been started, and returns when it has exited.
func (p *Process) Kill() {
	if e := p.lastRun.Load(); e != nil {
		e.kill()
	}
}

// Term sends SIGTERM once, if the process has been started. A second SIGTERM would make
// a node exit without finishing its work.
func (p *Process) Term() {
	if e := p.lastRun.Load(); e != nil {
		e.terminate()
	}
}

// Stop sends SIGTERM, unless an earlier call of Term or Stop has, and returns when the
// process has exited. It kills a process that has not exited after grace. It does nothing
// if the process was never started.
func (p *Process) Stop(grace time.Duration) {
	e := p.lastRun.Load()
	if e == nil {
		return
	}
	e.terminate()
	select {
	case <-e.ended:
	case <-time.After(grace):
		e.kill()
	}
}

// kill kills the process and waits until it has exited.
func (e *execution) kill() {
	e.requested.Store(true)
	_ = e.cmd.Process.Kill() // fails if it has exited already
	<-e.ended
}

// terminate sends SIGTERM, unless it has before. It does not wait for the exit.
func (e *execution) terminate() {
	e.requested.Store(true)
	e.term.Do(func() { _ = e.cmd.Process.Signal(syscall.SIGTERM) }) // fails if it has exited already
}

// Wait waits for the process to exit and returns its exit error.
func (p *Process) Wait(ctx context.Context) error {
	e := p.lastRun.Load()
	select {
	case <-e.ended:
		return e.err
	case <-ctx.Done():
		return fmt.Errorf("%s has not exited: %w", p.Name, ctx.Err())
	}
}

// Ended returns nil while the process runs, and afterwards an error with its exit
// status and the end of its output.
func (p *Process) Ended() error {
	e := p.lastRun.Load()
	if !e.hasEnded() {
		return nil
	}
	return fmt.Errorf("%s has ended (%v): %s", p.Name, e.err, p.OutputTail())
}

// UnexpectedExit returns an error if the process has exited, and not because of
// Kill, Term or Stop.
func (p *Process) UnexpectedExit() error {
	e := p.lastRun.Load()
	if e == nil || !e.hasEnded() || e.requested.Load() {
		return nil
	}
	return fmt.Errorf("unexpected exit: %w", p.Ended())
}

// Log returns the output of the process so far.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// OutputTail returns the last 600 bytes of the process's output, with the name of the
// log file.
func (p *Process) OutputTail() string {
	text := bytes.TrimSpace([]byte(p.Log()))
	if cut := len(text) - 600; cut > 0 {
		text = text[cut:]
	}
	return filepath.Base(p.LogFile) + " ends with: " + string(text)
}
