package demo

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

// process is one started program. Its output goes to a file.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how; valid after done

	once   sync.Once
	wanted chan struct{} // closed when we asked for its end
}

// start starts a program in a process group of its own, so that a Ctrl-C
// reaches it only through us, and such that it dies with us whatever happens
// to us.
func start(name, logFile, program string, args ...string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", name, err)
	}
	defer log.Close() // the child has its own
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, log: logFile, cmd: cmd, done: make(chan struct{}), wanted: make(chan struct{})}
	go func() { // ends with the process, for which stop waits
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// kill is SIGKILL, and returns when the process is gone.
func (p *process) kill() {
	p.want()
	_ = p.cmd.Process.Kill() // an error means that it is gone already
	<-p.done
}

// ask asks the process to stop.
func (p *process) ask() {
	p.want()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // as above
}

// stop waits until the process that was asked has ended, and kills it when it
// takes too long.
func (p *process) stop(within time.Duration) {
	late := time.NewTimer(within)
	defer late.Stop()
	select {
	case <-p.done:
	case <-late.C:
		p.kill()
	}
}

func (p *process) want() { p.once.Do(func() { close(p.wanted) }) }

// fell tells that the process has ended and nobody asked it to.
func (p *process) fell() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	select {
	case <-p.wanted:
		return nil
	default:
	}
	return fmt.Errorf("%s ended by itself (%v): %s", p.name, p.err, p.lastWords())
}

// lastWords is the end of the log.
func (p *process) lastWords() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	if cut := len(text) - 600; cut > 0 {
		text = text[cut:]
	}
	return filepath.Base(p.log) + " ends with: " + string(text)
}
