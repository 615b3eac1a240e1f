package runnerpool

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/runnerpool/rrq"
)

// A log that blocks does not delay an outcome, whatever a process has printed.
func TestOutputReader_AwaitHandledTimeout(t *testing.T) {
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
		p.taps[i] = newOutputReader(pipe)
	}
	done := make(chan struct{})
	go func() { p.drainOutput(); close(done) }()
	select {
	case <-done:
	case <-time.After(testTimeout):
		t.Fatal("the outcome is delayed by the log")
	}
}

// An event that ends a slot's wait also ends one that is about to begin.
func TestSetDeadline_BeforeWait(t *testing.T) {
	ours, theirs := net.Pipe()
	defer theirs.Close()
	conn := rrq.NewConn(ours)
	defer conn.Close()
	d := newDispatch(job.Assignment{}, job.Spec{}, nil, time.Hour)
	d.setDeadline(time.Now())
	d.arm(conn, time.Now().Add(time.Hour))
	waited := make(chan error, 1)
	go func() { _, err := conn.Wait(); waited <- err }()
	select {
	case err := <-waited:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the wait ends with %v", err)
		}
	case <-time.After(testTimeout):
		t.Fatal("the slot waits for a process that has ended")
	}
}
