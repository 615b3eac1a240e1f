package statedir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const lockFile = "engine.lock"

// lockPause is the interval between attempts to take a held lock. Commands hold
// it for milliseconds.
const lockPause = 2 * time.Millisecond

// lock blocks until it holds the directory's lock or ctx is done. how is
// [unix.LOCK_SH] or [unix.LOCK_EX]. Closing the returned file, and so the end of
// the process, releases the lock. The original program locks the same file in
// the same way.
func lock(ctx context.Context, dir string, how int) (*os.File, error) {
	name := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)) && how == unix.LOCK_SH {
		f, err = os.Open(name) // a shared lock needs no write permission
	}
	if err != nil {
		return nil, ioError(err)
	}
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, ioError(&fs.PathError{Op: "lock", Path: name, Err: err})
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("io error: %s is locked by another process; wait for it to end, or end it", name)
		case <-time.After(lockPause):
		}
	}
}
