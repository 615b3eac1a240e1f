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

// Freeze makes the disk hang: writes wait in the kernel, reads go on. It is
// thawed by what Freeze returns, which may be called again, and in any case
// when limit has passed or this process has died.
func (d *Disk) Freeze(limit time.Duration) (thaw func() error, err error) {
	if d.thaw != nil {
		return nil, errors.New("the disk is frozen already")
	}
	dir, err := os.Open(d.Dir)
	if err != nil {
		return nil, fmt.Errorf("freeze %s: %w", d.Dir, err)
	}
	dismiss, err := watchdog(dir, limit)
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
			if errors.Is(err, unix.EINVAL) { // the watchdog was first
				err = fmt.Errorf("%s was thawed before its time, after %v", d.Dir, limit)
			}
			failed = errors.Join(err, dismiss(), dir.Close())
			d.thaw = nil
		})
		return failed
	}
	return d.thaw, nil
}

// Thaw lets a frozen disk go on; any other it leaves alone.
func (d *Disk) Thaw() error {
	if d.thaw == nil {
		return nil
	}
	return d.thaw()
}

// watchdog starts a process that thaws dir when limit has passed or when our
// end of its input is closed, as by our death. It has dir open already: to
// open something on a frozen disk may hang.
func watchdog(dir *os.File, limit time.Duration) (dismiss func() error, err error) {
	dog := exec.Command("sh", "-c", `timeout "$0" cat >/dev/null; fsfreeze --unfreeze /dev/fd/3 2>/dev/null; true`,
		strconv.FormatFloat(limit.Seconds(), 'f', 3, 64))
	dog.Dir, dog.ExtraFiles = "/", []*os.File{dir}
	dog.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a Ctrl-C is for us
	in, err := dog.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start a watchdog: %w", err)
	}
	if err := dog.Start(); err != nil {
		return nil, fmt.Errorf("start a watchdog: %w", err)
	}
	return func() error { return errors.Join(in.Close(), dog.Wait()) }, nil
}

// filler is the file that fills a disk.
const filler = "filler"

// Fill takes the disk's room until only left bytes are free for others.
func (d *Disk) Fill(left int64) error {
	f, err := os.OpenFile(filepath.Join(d.Dir, filler), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("fill %s: %w", d.Dir, err)
	}
	defer f.Close()
	free, err := d.Free()
	if err != nil {
		return err
	}
	at, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("fill %s: %w", d.Dir, err)
	}
	// By the piece: somebody else writes meanwhile, and what the file system
	// needs to note where they lie is not ours to foresee.
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
		if free, err = d.Free(); err != nil {
			return err
		}
	}
	return nil
}

// Empty gives back what [Disk.Fill] took.
func (d *Disk) Empty() error { return os.Remove(filepath.Join(d.Dir, filler)) }

// Free is how many bytes can still be written.
func (d *Disk) Free() (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(d.Dir, &s); err != nil {
		return 0, fmt.Errorf("look at %s: %w", d.Dir, err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// ReadOnly has the disk take no more writes, also from files that are open, as
// a file system does that has met an error. [Disk.Cut] and [Disk.Restore] mend
// it.
func (d *Disk) ReadOnly() error {
	d.lost = true // and the way back is the same
	// The kernel refuses to remount while files are open for writing; this is
	// its way for emergencies, which it offers for one device as an abort.
	return run("mount", "-o", "remount,abort", d.Dir)
}

// Flip turns the bits of mask in the byte at offset of a file; from the end if
// offset is negative. The file keeps its length and is durable afterwards.
func Flip(file string, offset int64, mask byte) error {
	return change(file, func(f *os.File, size int64) error {
		if offset < 0 {
			offset += size
		}
		if offset < 0 || offset >= size {
			return fmt.Errorf("it has %d bytes, none at %d", size, offset)
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

// Cutoff takes n bytes off a file's end, or all it has.
func Cutoff(file string, n int64) error {
	return change(file, func(f *os.File, size int64) error { return f.Truncate(max(0, size-n)) })
}

func change(file string, how func(f *os.File, size int64) error) error {
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("damage: %w", err)
	}
	defer f.Close()
	s, err := f.Stat()
	if err != nil {
		return fmt.Errorf("damage: %w", err)
	}
	if err := errors.Join(how(f, s.Size()), f.Sync()); err != nil {
		return fmt.Errorf("damage %s: %w", file, err)
	}
	return nil
}

// Replace puts a copy of the directory from where the directory to is.
func Replace(to, from string) error {
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("remove %s: %w", to, err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	return nil
}
