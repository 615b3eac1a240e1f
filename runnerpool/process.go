package runnerpool

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/job"
)

const (
	groupPoll  = 10 * time.Millisecond  // interval of polling a group whose leader has ended
	outputTail = 200 * time.Millisecond // time for the last lines of a process that has ended
)

// process is one running runner, the leader of its process group.
type process struct {
	cmd        *exec.Cmd
	pid        int
	marker     string        // in its environment, and in that of processes it forks
	exited     chan struct{} // closed when the leader and its group have ended
	cleaned    chan struct{} // closed when its goroutines and pipes are released, too
	exitStatus string        // how it ended; set before exited is closed
	output     sync.WaitGroup
	pipes      [2]*os.File      // the node's ends of stdout and stderr
	taps       [2]*outputReader // readers of the pipes
	jobLog     *jobLog

	mu         sync.Mutex
	graceUntil time.Time // until when the group may outlive its leader; zero: not at all
	groupEnded bool      // the group has ended: its id may have been reused
}

// startProcess starts cmd by calling startCmd, with pipes for its output, and
// watches it. The output goes to log.
func startProcess(cmd *exec.Cmd, startCmd func(*exec.Cmd) error, log *jobLog) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{}), cleaned: make(chan struct{}), jobLog: log}
	var childEnds [2]*os.File
	for i := range p.pipes {
		var err error
		if p.pipes[i], childEnds[i], err = os.Pipe(); err != nil {
			closeAll(p.pipes[:i])
			closeAll(childEnds[:i])
			return nil, fmt.Errorf("make output pipe: %w", err)
		}
		if p.taps[i], err = newOutputReader(p.pipes[i]); err != nil {
			closeAll(p.pipes[:i+1])
			closeAll(childEnds[:i+1])
			return nil, fmt.Errorf("read output pipe: %w", err)
		}
	}
	cmd.Stdout, cmd.Stderr = childEnds[0], childEnds[1]
	err := startCmd(cmd)
	closeAll(childEnds[:])
	if err != nil {
		closeAll(p.pipes[:])
		return nil, err
	}
	p.pid = cmd.Process.Pid
	for i, stream := range [...]string{job.LogStdout, job.LogStderr} {
		p.output.Go(func() { readLines(p.taps[i], func(line []byte, cut bool) { log.writeLine(stream, line, cut) }) })
	}
	go p.watch() // ends with the process; the caller waits for cleaned
	return p, nil
}

// drainOutput returns when everything that the process has printed so far is in
// the job log, or after outputTail, because the log may be slow.
func (p *process) drainOutput() {
	timeout, cancel := context.WithTimeout(context.Background(), outputTail)
	defer cancel()
	for _, t := range p.taps {
		t.awaitHandled(timeout)
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // nothing is lost by an error
	}
}

// watch waits for the process to end, kills what is left of its group, sets
// exitStatus, and closes exited and cleaned. If the process was being
// terminated, the rest of its group may run until graceUntil.
func (p *process) watch() {
	p.awaitLeader()
	p.mu.Lock()
	deadline := p.graceUntil
	p.mu.Unlock()
	if deadline.IsZero() {
		// It ended by itself. The rest of the group is killed while the
		// unreaped leader still reserves the group's id.
		p.signal(syscall.SIGKILL)
	}
	state, err := p.cmd.Process.Wait()
	if err != nil {
		p.exitStatus = "ended: " + err.Error()
	} else {
		p.exitStatus = state.String()
	}
	for !deadline.IsZero() && p.signal(0) {
		if !time.Now().Before(deadline) {
			p.signal(syscall.SIGKILL)
			if len(groupMembers(p.pid)) == 0 {
				break // the rest are zombies, for their new parent to reap
			}
		}
		time.Sleep(groupPoll) // the processes are not children, so they can only be polled
	}
	p.mu.Lock()
	p.groupEnded = true
	p.mu.Unlock()
	close(p.exited)
	for _, pipe := range p.pipes {
		// A process that has left the group may keep the other end open for
		// ever.
		_ = pipe.SetReadDeadline(time.Now().Add(outputTail)) // fails only on a closed pipe
	}
	p.output.Wait()
	closeAll(p.pipes[:])
	close(p.cleaned)
}

// awaitLeader returns when the leader has ended, without reaping it.
func (p *process) awaitLeader() {
	for {
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, syscall.EINTR) {
			return // ended, or not a child: then Wait returns an error
		}
	}
}

// terminate sends SIGTERM to the group and, after grace, SIGKILL, and returns
// when the leader and the group have ended. A grace of 0 kills at once.
func (p *process) terminate(grace time.Duration) {
	deadline := time.Now().Add(grace)
	p.mu.Lock()
	if p.graceUntil.IsZero() || deadline.Before(p.graceUntil) {
		p.graceUntil = deadline
	}
	p.mu.Unlock()
	p.signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		p.kill()
		<-p.exited
	}
}

// kill kills the group.
func (p *process) kill() {
	p.mu.Lock()
	p.graceUntil = time.Now()
	p.mu.Unlock()
	p.signal(syscall.SIGKILL)
}

// signal sends s to the group. It returns false if the group has ended.
func (p *process) signal(s syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.groupEnded && syscall.Kill(-p.pid, s) == nil
}

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}
