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

// lockPause is how often a held lock is asked for again. Commands hold it for
// milliseconds.
const lockPause = 2 * time.Millisecond

// lock waits for the directory's lock until ctx ends. It is gone with the file
// that it is held on, so also with the process, however that ends. The original
// locks the same file in the same way.
func lock(ctx context.Context, dir string, how int) (*os.File, error) {
	name := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if (errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS)) && how == unix.LOCK_SH {
		f, err = os.Open(name) // looking is allowed where changing is not
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
