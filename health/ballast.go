package health

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// BallastFile is the name of the ballast in a data directory.
const BallastFile = "ballast"

// The default size of a ballast: a share of the disk, but not more than an operator
// needs to repair a node.
const (
	defaultBallast  = 256 << 20 // bytes
	ballastFraction = 50        // the share is one part in so many of the disk
)

// NoBallast is the size that disables the ballast.
const NoBallast = -1

// EnsureBallast creates a file that only occupies disk space, which an operator
// can release when the disk is full. size is in bytes; 0 chooses one by the size
// of the disk, and NoBallast removes an existing ballast. Otherwise an existing
// ballast is kept, whatever its size. None is created in a memory file system, or
// if less than twice the refuse threshold would remain free. EnsureBallast returns
// the size of the ballast, 0 for none.
func (d Disk) EnsureBallast(size int64) (int64, error) {
	if size == NoBallast {
		_, err := d.ReleaseBallast()
		return 0, err
	}
	path := filepath.Join(d.Dir, BallastFile)
	if info, err := os.Stat(path); err == nil {
		return info.Size(), nil // resizing could fail on a full disk
	}
	space, err := d.Measure()
	if err != nil {
		return 0, err
	}
	if size == 0 {
		size = min(defaultBallast, space.Size/ballastFraction)
	}
	if space.Free-size < 2*space.Refuse || d.inMemory() {
		return 0, nil
	}
	return size, d.allocate(path, size)
}

// inMemory reports whether the file system is held in memory.
func (d Disk) inMemory() bool {
	var st unix.Statfs_t
	return unix.Statfs(d.Dir, &st) == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC)
}

// allocate creates a file whose blocks are reserved, but not written.
func (d Disk) allocate(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create the ballast: %w", err)
	}
	err = errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, size), f.Close())
	if err != nil {
		return errors.Join(fmt.Errorf("allocate the ballast: %w", err), os.Remove(path))
	}
	return nil
}

// ReleaseBallast removes the ballast and returns the number of bytes freed. The
// node creates a new one at its next start if there is enough space.
func (d Disk) ReleaseBallast() (int64, error) {
	path := filepath.Join(d.Dir, BallastFile)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return 0, fmt.Errorf("release the ballast: %w", err)
	}
	return info.Size(), nil
}
