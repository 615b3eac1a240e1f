package demo

import (
	"fmt"
	"sync"
	"time"

	procs "yardmaster/drill/yard"
)

// process is a started program whose end is bad news unless it was asked for.
type process struct {
	*procs.Process
	once   sync.Once
	wanted chan struct{} // closed when we asked for its end
}

func start(name, logFile, program string, args ...string) (*process, error) {
	p, err := procs.StartProcess(name, logFile, nil, program, args...)
	if err != nil {
		return nil, err
	}
	return &process{Process: p, wanted: make(chan struct{})}, nil
}

// kill is SIGKILL, and returns when the process is gone.
func (p *process) kill() {
	p.want()
	p.Kill()
}

// ask asks the process to stop.
func (p *process) ask() {
	p.want()
	p.Term()
}

// stop waits until the process has ended, and kills it when it takes too long.
func (p *process) stop(within time.Duration) {
	p.want()
	p.Stop(within)
}

func (p *process) want() { p.once.Do(func() { close(p.wanted) }) }

// fell tells that the process has ended and nobody asked it to.
func (p *process) fell() error {
	ended := p.Ended()
	if ended == nil {
		return nil
	}
	select {
	case <-p.wanted:
		return nil
	default:
		return fmt.Errorf("nobody asked for this: %w", ended)
	}
}
