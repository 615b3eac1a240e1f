package runnerpool

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"yardmaster/job"
	"yardmaster/runnerpool/rrq"
)

// A log that takes nothing holds no outcome up, whatever a process has printed
// to either stream.
func TestCatchUp_GivesUp(t *testing.T) {
	p := &process{}
	for i := range p.taps {
		pipe, theirs, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeAll([]*os.File{pipe, theirs}) })
		if _, err := theirs.WriteString("nobody reads this\n"); err != nil {
			t.Fatal(err)
		}
		if p.taps[i], err = newTap(pipe); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() { p.catchUp(); close(done) }()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("the outcome waits for the log")
	}
}

// What ends a wait ends it also if the slot was about to begin it.
func TestInterrupt_BeforeTheWait(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	conn := rrq.NewConn(ours)
	defer conn.Close()
	d := newDispatch(job.Assignment{}, job.Spec{}, nil, time.Hour)
	d.interrupt(time.Now())
	d.arm(conn, time.Now().Add(time.Hour))
	waited := make(chan error, 1)
	go func() { _, err := conn.Wait(); waited <- err }()
	select {
	case err := <-waited:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the wait ends with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the slot waits for a process that has ended")
	}
}
