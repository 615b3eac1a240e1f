package disk

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
