package vigil

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

// What a ballast is if nobody says how large: a share of the disk, but not more
// than anybody needs to put a node in order.
const (
	defaultBallast = 256 << 20 // bytes
	ballastShare   = 50        // of the disk, one part in so many
)

// NoBallast as a size says that there is to be none.
const NoBallast = -1

// Ballast sees to it that a file lies in the disk's directory that only takes
// room, so that there is some to be given back when the disk is full: size bytes,
// 0 for a size that fits the disk. It is made only where twice as much as the
// mark that refuses jobs stays free, and not where room is memory. It returns how
// many bytes the ballast takes, 0 for none.
func (d Disk) Ballast(size int64) (int64, error) {
	path := filepath.Join(d.Dir, BallastFile)
	if info, err := os.Stat(path); size != NoBallast && err == nil {
		return info.Size(), nil // of whatever size: to change it would fail on a full disk
	}
	if size == NoBallast {
		_, err := d.ReleaseBallast()
		return 0, err
	}
	room, err := d.Look()
	if err != nil {
		return 0, err
	}
	if size == 0 {
		size = min(defaultBallast, room.Size/ballastShare)
	}
	if room.Free-size < 2*room.Refuse || d.inMemory() {
		return 0, nil
	}
	return size, d.fill(path, size)
}

// inMemory tells that the disk is none.
func (d Disk) inMemory() bool {
	var st unix.Statfs_t
	return unix.Statfs(d.Dir, &st) == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC)
}

// fill makes a file whose room is taken, but not written.
func (d Disk) fill(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make the ballast: %w", err)
	}
	err = errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, size), f.Close())
	if err != nil {
		return errors.Join(fmt.Errorf("take room for the ballast: %w", err), os.Remove(path))
	}
	return nil
}

// ReleaseBallast gives the ballast's room back and tells how much that is, in
// bytes; 0 if there is none. The node makes another when it starts and there is
// room.
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
