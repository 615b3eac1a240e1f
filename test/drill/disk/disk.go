package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ioctl requests that x/sys/unix does not define.
const (
	iocShutdown = 0x8004587D // EXT4_IOC_SHUTDOWN, takes a number
	noLogFlush  = 2          // EXT4_GOING_FLAGS_NOLOGFLUSH: drop the running journal transaction as well
)

// unmountTimeout limits how long an unmount waits for killed processes to close
// their files.
const unmountTimeout = 15 * time.Second

// Disk is an ext4 file system in a file. Its methods must be called from one
// goroutine.
type Disk struct {
	Dir   string // mount point
	Image string // file that holds the file system

	mounted bool
	lost    bool         // shut down, but still mounted
	thaw    func() error // non-nil while frozen
}

// Missing returns what this machine lacks to mount disks, or "" if nothing.
func Missing() string {
	if os.Geteuid() != 0 {
		return "mounting disks needs root"
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount", "fsfreeze"} {
		if _, err := exec.LookPath(tool); err != nil {
			return tool + " is not installed"
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return "the kernel has no loop devices"
	}
	return ""
}

// New creates a disk of size bytes in the sparse file dir+".img" and mounts it at
// dir. The caller must close it.
func New(dir string, size int64) (*Disk, error) {
	if reason := Missing(); reason != "" {
		return nil, errors.New(reason)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	d := &Disk{Dir: dir, Image: dir + ".img"}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the mount point: %w", err)
	}
	if err := d.format(size); err != nil {
		return nil, errors.Join(err, os.Remove(d.Image))
	}
	if err := d.Restore(); err != nil {
		return nil, errors.Join(err, os.Remove(d.Image))
	}
	return d, nil
}

// format creates the file system, without blocks reserved for root and without
// initialization left for later.
func (d *Disk) format(size int64) error {
	f, err := os.OpenFile(d.Image, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create the image: %w", err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return fmt.Errorf("create the image: %w", err)
	}
	return run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", d.Image)
}

// Restore mounts the disk, as after a loss of power. Mounting replays the journal.
func (d *Disk) Restore() error {
	if d.mounted {
		return nil
	}
	if err := run("mount", "-t", "ext4", "-o", "loop,noatime", d.Image, d.Dir); err != nil {
		return err
	}
	d.mounted = true
	return nil
}

// Cut simulates a loss of power: data that was not synced is dropped, and the disk
// is unmounted until [Disk.Restore]. Processes that write to it must have been
// killed before; Cut waits for their exit.
func (d *Disk) Cut() error {
	if err := d.ShutDown(); err != nil {
		return err
	}
	return d.unmount()
}

// ShutDown is the first half of [Disk.Cut]: from now on nothing is written, and
// every access returns an error.
func (d *Disk) ShutDown() error {
	if d.lost {
		return nil
	}
	f, err := os.Open(d.Dir)
	if err != nil {
		return fmt.Errorf("cut the power of %s: %w", d.Dir, err)
	}
	defer f.Close()
	if err := unix.IoctlSetPointerInt(int(f.Fd()), iocShutdown, noLogFlush); err != nil {
		return fmt.Errorf("cut the power of %s: %w", d.Dir, err)
	}
	d.lost = true
	return nil
}

// unmount unmounts the disk. It waits for killed processes that still use it.
func (d *Disk) unmount() error {
	for end := time.Now().Add(unmountTimeout); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Unmount(d.Dir, unix.UMOUNT_NOFOLLOW) // detaches the loop device as well
		if err == nil {
			d.mounted, d.lost = false, false
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fmt.Errorf("unmount %s, held by %s: %w", d.Dir, strings.Join(holders(d.Dir), ", "), err)
		}
	}
}

// holders returns pid and name of the processes with open files below dir.
func holders(dir string) []string {
	found := []string{}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	cwds, _ := filepath.Glob("/proc/[0-9]*/cwd")
	seen := make(map[string]bool)
	for _, l := range append(links, cwds...) {
		pid := strings.Split(l, "/")[2]
		to, err := os.Readlink(l)
		if err != nil || seen[pid] || to != dir && !strings.HasPrefix(to, dir+"/") {
			continue
		}
		seen[pid] = true
		name, _ := os.ReadFile("/proc/" + pid + "/comm")
		found = append(found, pid+" "+string(bytes.TrimSpace(name)))
	}
	return found
}

// Repair undoes every fault of the disk; data lost by [Disk.Cut] stays lost.
// Processes that used the disk while it failed must have exited.
func (d *Disk) Repair() error {
	if err := d.Thaw(); err != nil {
		return err
	}
	if d.lost {
		if err := d.unmount(); err != nil {
			return err
		}
	}
	if err := d.Restore(); err != nil {
		return err
	}
	if err := d.FreeSpace(); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Close thaws and unmounts the disk, whatever its state, and removes its image. It
// may be called more than once.
func (d *Disk) Close() error {
	err := d.Thaw()
	if d.mounted {
		err = errors.Join(err, d.unmount())
	}
	if d.mounted { // still in use: at least free the mount point
		err = errors.Join(err, unix.Unmount(d.Dir, unix.MNT_DETACH))
		d.mounted = false
	}
	if rm := os.Remove(d.Image); !errors.Is(rm, os.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	return err
}

// run runs a command. The error includes its output.
func run(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

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
