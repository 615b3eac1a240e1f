package procs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Process is a started program. Its output goes to a file.
type Process struct {
	Name string
	Log  string // path of the output file

	cmd  *exec.Cmd
	done chan struct{} // closed when it has exited
	err  error         // its exit error; valid after done
	once sync.Once     // for Term
}

// StartProcess starts a program with env added to the environment of this process.
// The program runs in its own process group, so that Ctrl-C does not reach it
// directly, and is killed when this process dies.
func StartProcess(name, logFile string, env []string, program string, args ...string) (*Process, error) {
	log, err := os.OpenFile(logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer log.Close() // the child has its own descriptor
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, Log: logFile, cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the process; Stop and Kill wait for it
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Kill kills the process and returns when it has exited.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails if it has exited already
	<-p.done
}

// Term sends SIGTERM once. A second SIGTERM would make a node exit without
// finishing its work.
func (p *Process) Term() {
	p.once.Do(func() { _ = p.cmd.Process.Signal(syscall.SIGTERM) }) // as above
}

// Stop sends SIGTERM, unless Term has, and waits for the exit. After within it
// kills the process.
func (p *Process) Stop(within time.Duration) {
	p.Term()
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.Kill()
	}
}

// Ended returns nil while the process runs, and afterwards an error with its exit
// status and the end of its output.
func (p *Process) Ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended (%v): %s", p.Name, p.err, p.OutputTail())
	default:
		return nil
	}
}

// OutputTail returns the end of the process's output.
func (p *Process) OutputTail() string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	if cut := len(text) - 600; cut > 0 {
		text = text[cut:]
	}
	return filepath.Base(p.Log) + " ends with: " + string(text)
}

// PID returns the id of the process.
func (p *Process) PID() PID { return PID(p.cmd.Process.Pid) }

// CPU, Memory and Descriptors call the methods of the process's PID.
func (p *Process) CPU() time.Duration { return p.PID().CPU() }
func (p *Process) Memory() int64      { return p.PID().Memory() }
func (p *Process) Descriptors() int   { return p.PID().Descriptors() }
