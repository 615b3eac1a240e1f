package runnerpool

import (
	"context"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// tap reads what a process prints, and can tell when all that it had printed
// up to a moment has been dealt with.
type tap struct {
	raw syscall.RawConn

	mu      sync.Mutex
	taken   int64         // bytes read from the pipe
	heard   int64         // of them, those whose reader came back for more
	changed chan struct{} // closed when heard grows; nil: nobody waits
}

func newTap(pipe *os.File) (*tap, error) {
	raw, err := pipe.SyscallConn()
	return &tap{raw: raw}, err
}

// Read reads what there is, and waits for something if there is nothing.
func (t *tap) Read(p []byte) (n int, err error) {
	t.mu.Lock()
	t.heard = t.taken
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
	t.mu.Unlock()
	waiting := t.raw.Read(func(fd uintptr) bool {
		t.mu.Lock() // what has left the pipe is counted before anybody looks
		defer t.mu.Unlock()
		for n, err = unix.Read(int(fd), p); err == unix.EINTR; {
			n, err = unix.Read(int(fd), p)
		}
		if n > 0 {
			t.taken += int64(n)
		}
		return err != unix.EAGAIN
	})
	switch {
	case waiting != nil:
		return 0, waiting
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// catchUp returns when all that the process has printed so far has been dealt
// with, or when ctx ends.
func (t *tap) catchUp(ctx context.Context) {
	t.mu.Lock()
	goal := t.taken
	_ = t.raw.Control(func(fd uintptr) { // a pipe that is closed holds nothing
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			goal += int64(n)
		}
	})
	for t.heard < goal {
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		changed := t.changed
		t.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		t.mu.Lock()
	}
	t.mu.Unlock()
}
