package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	iocFreeze = 0xC0045877 // FIFREEZE
	iocThaw   = 0xC0045878 // FITHAW
)

// Freeze makes writes to the disk block in the kernel; reads succeed. The disk is
// thawed by the returned function, which may be called more than once, and in any
// case after limit or when this process dies. A thaw by the watchdog is an error.
func (d *Disk) Freeze(limit time.Duration) (thaw func() error, err error) {
	if d.thaw != nil {
		return nil, errors.New("the disk is frozen already")
	}
	dir, err := os.Open(d.Dir)
	if err != nil {
		return nil, fmt.Errorf("freeze %s: %w", d.Dir, err)
	}
	dismiss, err := startWatchdog(dir, limit)
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	if err := unix.IoctlSetInt(int(dir.Fd()), iocFreeze, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("freeze %s: %w", d.Dir, err), dismiss(), dir.Close())
	}
	var once sync.Once
	var failed error
	d.thaw = func() error {
		once.Do(func() {
			err := unix.IoctlSetInt(int(dir.Fd()), iocThaw, 0)
			if errors.Is(err, unix.EINVAL) { // thawed by the watchdog
				err = fmt.Errorf("%s was thawed before its time, after %v", d.Dir, limit)
			}
			failed = errors.Join(err, dismiss(), dir.Close())
			d.thaw = nil
		})
		return failed
	}
	return d.thaw, nil
}

// Thaw thaws the disk if it is frozen.
func (d *Disk) Thaw() error {
	if d.thaw == nil {
		return nil
	}
	return d.thaw()
}

// startWatchdog starts a process that thaws dir after limit, or as soon as its
// standard input is closed, as by the death of this process. It inherits the open
// directory, because opening a file on a frozen disk may block. dismiss ends it.
func startWatchdog(dir *os.File, limit time.Duration) (dismiss func() error, err error) {
	dog := exec.Command("sh", "-c", `timeout "$0" cat >/dev/null; fsfreeze --unfreeze /dev/fd/3 2>/dev/null; true`,
		strconv.FormatFloat(limit.Seconds(), 'f', 3, 64))
	dog.Dir, dog.ExtraFiles = "/", []*os.File{dir}
	dog.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // not reached by Ctrl-C
	in, err := dog.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start a watchdog: %w", err)
	}
	if err := dog.Start(); err != nil {
		return nil, fmt.Errorf("start a watchdog: %w", err)
	}
	return func() error { return errors.Join(in.Close(), dog.Wait()) }, nil
}

// fillFile is the name of the file that fills a disk.
const fillFile = "filler"

// Fill allocates space until at most left bytes are available.
func (d *Disk) Fill(left int64) error {
	f, err := os.OpenFile(filepath.Join(d.Dir, fillFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("fill %s: %w", d.Dir, err)
	}
	defer f.Close()
	free, err := d.Available()
	if err != nil {
		return err
	}
	at, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("fill %s: %w", d.Dir, err)
	}
	// Allocate piecewise: other processes write at the same time, and the file
	// system's own need of space for metadata is unknown.
	for piece := int64(64 << 20); free > left && piece >= 4096; {
		err := unix.Fallocate(int(f.Fd()), 0, at, min(piece, free-left))
		switch {
		case errors.Is(err, unix.ENOSPC):
			piece /= 2
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("fill %s: %w", d.Dir, err)
		case err == nil:
			at += min(piece, free-left)
		}
		if free, err = d.Available(); err != nil {
			return err
		}
	}
	return nil
}

// FreeSpace frees the space that [Disk.Fill] allocated.
func (d *Disk) FreeSpace() error { return os.Remove(filepath.Join(d.Dir, fillFile)) }

// Available returns the number of bytes that can still be written.
func (d *Disk) Available() (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(d.Dir, &s); err != nil {
		return 0, fmt.Errorf("read the free space of %s: %w", d.Dir, err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// ReadOnly makes all writes fail, also to open files, as the kernel does after an
// I/O error of the device. [Disk.Cut] and [Disk.Restore] make the disk writable
// again.
func (d *Disk) ReadOnly() error {
	d.lost = true // recovery is the same as after ShutDown
	// The kernel refuses a plain remount while files are open for writing; with
	// the option abort it does not.
	return run("mount", "-o", "remount,abort", d.Dir)
}

// Flip inverts the bits of mask in the byte at offset of a file, counted from the
// end if offset is negative, and syncs the file.
func Flip(file string, offset int64, mask byte) error {
	return modify(file, func(f *os.File, size int64) error {
		if offset < 0 {
			offset += size
		}
		if offset < 0 || offset >= size {
			return fmt.Errorf("offset %[2]d is outside of its %[1]d bytes", size, offset)
		}
		var b [1]byte
		if _, err := f.ReadAt(b[:], offset); err != nil {
			return err
		}
		b[0] ^= mask
		_, err := f.WriteAt(b[:], offset)
		return err
	})
}

// Truncate removes the last n bytes of a file, at most all of them.
func Truncate(file string, n int64) error {
	return modify(file, func(f *os.File, size int64) error { return f.Truncate(max(0, size-n)) })
}

// modify opens a file, applies change to it and syncs it.
func modify(file string, change func(f *os.File, size int64) error) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("damage: %w", err)
	}
	defer f.Close()
	s, err := f.Stat()
	if err != nil {
		return fmt.Errorf("damage: %w", err)
	}
	if err := errors.Join(change(f, s.Size()), f.Sync()); err != nil {
		return fmt.Errorf("damage %s: %w", file, err)
	}
	return nil
}

// Replace replaces the directory to with a copy of the directory from.
func Replace(to, from string) error {
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("remove %s: %w", to, err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	return nil
}
