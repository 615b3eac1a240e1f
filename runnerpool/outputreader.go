package runnerpool

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// outputReader reads the output of a process and can wait until all output up
// to now has been handled.
type outputReader struct {
	raw syscall.RawConn

	mu           crash.Mutex
	bytesRead    int64         // bytes read from the pipe
	bytesHandled int64         // of these, bytes whose reader has called Read again
	changed      chan struct{} // closed when bytesHandled grows; nil: nothing waits
}

func newOutputReader(pipe *os.File) *outputReader {
	raw, _ := pipe.SyscallConn() // fails only for a nil pipe
	return &outputReader{raw: raw}
}

// Read implements [io.Reader]: it reads what is available, and blocks if there is
// nothing. A call means that the reader's owner has handled all bytes that earlier calls
// returned, for which awaitHandled waits.
func (r *outputReader) Read(p []byte) (n int, err error) {
	r.mu.Lock()
	r.bytesHandled = r.bytesRead
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
	r.mu.Unlock()
	rawErr := r.raw.Read(func(fd uintptr) bool {
		r.mu.Lock() // held during the read, so that bytes that left the pipe are counted
		defer r.mu.Unlock()
		for n, err = unix.Read(int(fd), p); err == unix.EINTR; {
			n, err = unix.Read(int(fd), p)
		}
		if n > 0 {
			r.bytesRead += int64(n)
		}
		return err != unix.EAGAIN
	})
	switch {
	case rawErr != nil:
		return 0, rawErr
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// awaitHandled returns when everything that the process has written so far is
// handled, or ctx ends.
func (r *outputReader) awaitHandled(ctx context.Context) {
	r.mu.Lock()
	goal := r.bytesRead
	_ = r.raw.Control(func(fd uintptr) { // a closed pipe is empty
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			goal += int64(n)
		}
	})
	for r.bytesHandled < goal {
		if r.changed == nil {
			r.changed = make(chan struct{})
		}
		changed := r.changed
		r.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		r.mu.Lock()
	}
	r.mu.Unlock()
}

// maxLine is the longest line of output that is kept, in bytes.
const maxLine = 16 << 10

// readLines calls handle for every line of a stream that is not empty, without
// its line end, until the stream ends. Of a line longer than maxLine, handle
// gets the beginning, and cut is true; the rest is read and dropped, so that the
// runner is never blocked.
func readLines(stream io.Reader, handle func(line []byte, cut bool)) {
	lines := bufio.NewReaderSize(stream, maxLine)
	skipping := false // the rest of a line that was handled
	for {
		line, err := lines.ReadSlice('\n')
		cut := err == bufio.ErrBufferFull
		if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 && !skipping {
			handle(line, cut)
		}
		skipping = cut
		if err != nil && !cut {
			return
		}
	}
}
