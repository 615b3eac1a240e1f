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

	"yardmaster/job"
)

const (
	groupPoll  = 10 * time.Millisecond  // between two looks at a group whose leader has ended
	outputTail = 200 * time.Millisecond // for the last lines of a process that has ended
)

// process is one living runner: the leader of its group.
type process struct {
	cmd    *exec.Cmd
	pid    int
	marker string        // in its environment, and of what it forks
	exited chan struct{} // closed when the leader and its group have ended
	dead   chan struct{} // closed when nothing of it is left here either
	how    string        // how it ended; set before exited is closed
	output sync.WaitGroup
	pipes  [2]*os.File // our ends of stdout and stderr
	taps   [2]*tap     // at the pipes
	voices *voices

	mu    sync.Mutex
	grace time.Time // how long the group may outlive its leader; zero: not at all
	gone  bool      // the group has ended: its number may be somebody else's
}

// start gives a command its pipes, has it started and watches it. What it
// prints goes to v.
func start(cmd *exec.Cmd, by func(*exec.Cmd) error, v *voices) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{}), dead: make(chan struct{}), voices: v}
	var theirs [2]*os.File
	for i := range p.pipes {
		var err error
		if p.pipes[i], theirs[i], err = os.Pipe(); err != nil {
			closeAll(p.pipes[:i])
			closeAll(theirs[:i])
			return nil, fmt.Errorf("make output pipe: %w", err)
		}
		if p.taps[i], err = newTap(p.pipes[i]); err != nil {
			closeAll(p.pipes[:i+1])
			closeAll(theirs[:i+1])
			return nil, fmt.Errorf("read output pipe: %w", err)
		}
	}
	cmd.Stdout, cmd.Stderr = theirs[0], theirs[1]
	err := by(cmd)
	closeAll(theirs[:])
	if err != nil {
		closeAll(p.pipes[:])
		return nil, err
	}
	p.pid = cmd.Process.Pid
	for i, stream := range [...]string{job.LogStdout, job.LogStderr} {
		p.output.Go(func() { follow(p.taps[i], func(line []byte, cut bool) { v.hear(stream, line, cut) }) })
	}
	go p.watch() // ends with the process; who started it waits for dead
	return p, nil
}

// catchUp returns when what the process has printed so far has found its job,
// or after a moment: somebody may read the log slowly.
func (p *process) catchUp() {
	late, cancel := context.WithTimeout(context.Background(), outputTail)
	defer cancel()
	for _, t := range p.taps {
		t.catchUp(late)
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // a pipe's end holds nothing that could be lost
	}
}

// watch notices the end of the process at once.
func (p *process) watch() {
	p.awaitLeader()
	p.mu.Lock()
	until := p.grace
	p.mu.Unlock()
	if until.IsZero() {
		// Nobody asked it to end. What it leaves behind goes with it, while
		// the leader, not yet reaped, keeps the group's number.
		p.signal(syscall.SIGKILL)
	}
	state, err := p.cmd.Process.Wait()
	if err != nil {
		p.how = "ended: " + err.Error()
	} else {
		p.how = state.String()
	}
	for !until.IsZero() && p.signal(0) {
		if !time.Now().Before(until) {
			p.signal(syscall.SIGKILL)
			if len(members(p.pid)) == 0 {
				break // what is left is for their new parent to reap
			}
		}
		time.Sleep(groupPoll) // a group that is not ours to wait for can only be looked at
	}
	p.mu.Lock()
	p.gone = true
	p.mu.Unlock()
	close(p.exited)
	for _, pipe := range p.pipes {
		// Somebody who left the group may hold the other end for ever.
		_ = pipe.SetReadDeadline(time.Now().Add(outputTail)) // fails on a closed pipe only, which needs none
	}
	p.output.Wait()
	closeAll(p.pipes[:])
	close(p.dead)
}

// awaitLeader returns when the leader has ended, and leaves it unreaped.
func (p *process) awaitLeader() {
	for {
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, syscall.EINTR) {
			return // ended, or not our child: then Wait says so
		}
	}
}

// end asks the group to end and makes sure that it has, the leader first, both
// within grace; 0 does not wait at all.
func (p *process) end(grace time.Duration) {
	until := time.Now().Add(grace)
	p.mu.Lock()
	if p.grace.IsZero() || until.Before(p.grace) {
		p.grace = until
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

// kill ends the group at once.
func (p *process) kill() {
	p.mu.Lock()
	p.grace = time.Now()
	p.mu.Unlock()
	p.signal(syscall.SIGKILL)
}

// signal reaches the whole group, as long as it is there.
func (p *process) signal(s syscall.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.gone && syscall.Kill(-p.pid, s) == nil
}

func (p *process) hasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}
