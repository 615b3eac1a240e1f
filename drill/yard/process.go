package yard

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

// Process is one started program. Its output goes to a file.
type Process struct {
	Name string
	Log  string // file of its output

	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; valid after done
	once sync.Once     // for Term
}

// StartProcess starts a program with env added to our environment. It stands
// in a process group of its own, so that a Ctrl-C reaches it through us only,
// and dies with us whatever happens to us.
func StartProcess(name, logFile string, env []string, program string, args ...string) (*Process, error) {
	log, err := os.OpenFile(logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, Log: logFile, cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the process, for which Stop and Kill wait
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Kill is SIGKILL, and returns when the process is gone.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // an error means that it is gone already
	<-p.done
}

// Term asks the process to end, once only: asked twice, it would end at once
// and leave its work as it is.
func (p *Process) Term() {
	p.once.Do(func() { _ = p.cmd.Process.Signal(syscall.SIGTERM) }) // as above
}

// Stop asks the process to end, unless it was asked, and kills it when that
// takes longer than within.
func (p *Process) Stop(within time.Duration) {
	p.Term()
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case <-p.done:
	case <-late.C:
		p.Kill()
	}
}

// Ended is nil while the process runs, and then says how it ended and what it
// said last.
func (p *Process) Ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended (%v): %s", p.Name, p.err, p.LastWords())
	default:
		return nil
	}
}

// LastWords is the end of the process's output.
func (p *Process) LastWords() string {
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

// PID is the process as the kernel knows it.
func (p *Process) PID() PID { return PID(p.cmd.Process.Pid) }

// CPU, Memory and Descriptors are those of its PID.
func (p *Process) CPU() time.Duration { return p.PID().CPU() }
func (p *Process) Memory() int64      { return p.PID().Memory() }
func (p *Process) Descriptors() int   { return p.PID().Descriptors() }
