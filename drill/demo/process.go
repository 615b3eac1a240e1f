package demo

import (
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/drill/procs"
)

// process is a started program whose exit is an error unless it was requested.
type process struct {
	*procs.Process
	once         sync.Once
	exitExpected chan struct{} // closed when its exit is requested
}

func start(name, logFile, program string, args ...string) (*process, error) {
	p, err := procs.StartProcess(name, logFile, nil, program, args...)
	if err != nil {
		return nil, err
	}
	return &process{Process: p, exitExpected: make(chan struct{})}, nil
}

// kill kills the process and returns when it has exited.
func (p *process) kill() {
	p.expectExit()
	p.Kill()
}

// term sends SIGTERM to the process.
func (p *process) term() {
	p.expectExit()
	p.Term()
}

// stop sends SIGTERM and waits for the exit. After within it kills the process.
func (p *process) stop(within time.Duration) {
	p.expectExit()
	p.Stop(within)
}

func (p *process) expectExit() { p.once.Do(func() { close(p.exitExpected) }) }

// unexpectedExit returns an error if the process has exited without a request.
func (p *process) unexpectedExit() error {
	ended := p.Ended()
	if ended == nil {
		return nil
	}
	select {
	case <-p.exitExpected:
		return nil
	default:
		return fmt.Errorf("unexpected exit: %w", ended)
	}
}
