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

// The requests of linux/fs.h and ext4 that x/sys does not name.
const (
	iocShutdown = 0x8004587D // EXT4_IOC_SHUTDOWN, takes a number
	noLogFlush  = 2          // drop the journal's commit under way, too
)

// busyFor is how long an unmount waits for killed processes to let go.
const busyFor = 15 * time.Second

// Disk is an ext4 file system of its own. Its methods are for one goroutine.
type Disk struct {
	Dir   string // where it is mounted
	Image string // the file that holds it

	mounted bool
	lost    bool         // it has no power, and is still mounted
	thaw    func() error // while it is frozen
}

// Missing says what this machine lacks for disks, "" if nothing.
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

// New makes a disk of size bytes in the file dir+".img" and mounts it at dir.
// The file is sparse: it takes what is written. The caller closes the Disk.
func New(dir string, size int64) (*Disk, error) {
	if why := Missing(); why != "" {
		return nil, errors.New(why)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	d := &Disk{Dir: dir, Image: dir + ".img"}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make a place to mount: %w", err)
	}
	if err := d.format(size); err != nil {
		return nil, errors.Join(err, os.Remove(d.Image))
	}
	if err := d.Restore(); err != nil {
		return nil, errors.Join(err, os.Remove(d.Image))
	}
	return d, nil
}

// format lays the file system down: nothing reserved for root, who is who
// fills it, and nothing left to be written later.
func (d *Disk) format(size int64) error {
	f, err := os.OpenFile(d.Image, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return fmt.Errorf("make the image: %w", err)
	}
	return run("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", d.Image)
}

// Restore mounts the disk, as after a loss of power: the journal is replayed.
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

// Cut is the moment in which the power goes: whatever is not settled on the
// disk is dropped. Who writes there must have been killed, and may still be on
// its way out. The disk is gone until [Disk.Restore].
func (d *Disk) Cut() error {
	if err := d.Lose(); err != nil {
		return err
	}
	return d.unmount()
}

// Lose is the first half of Cut: from now on nothing is written any more, and
// who tries gets an error.
func (d *Disk) Lose() error {
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

// unmount waits for processes that were killed a moment ago.
func (d *Disk) unmount() error {
	for end := time.Now().Add(busyFor); ; time.Sleep(20 * time.Millisecond) {
		err := unix.Unmount(d.Dir, unix.UMOUNT_NOFOLLOW) // the loop device goes with it
		if err == nil {
			d.mounted, d.lost = false, false
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fmt.Errorf("unmount %s, held by %s: %w", d.Dir, strings.Join(holders(d.Dir), ", "), err)
		}
	}
}

// holders names the processes that have something open below dir.
func holders(dir string) []string {
	found := []string{}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	works, _ := filepath.Glob("/proc/[0-9]*/cwd")
	seen := make(map[string]bool)
	for _, l := range append(links, works...) {
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

// Mend undoes whatever was done to the disk, but for what was lost. Nobody may
// have it open that saw it fail.
func (d *Disk) Mend() error {
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
	if err := d.Empty(); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// Close thaws and unmounts the disk, whatever state it is in, and removes its
// image. It is safe to call again.
func (d *Disk) Close() error {
	err := d.Thaw()
	if d.mounted {
		err = errors.Join(err, d.unmount())
	}
	if d.mounted { // somebody still writes there: at least it takes no name
		err = errors.Join(err, unix.Unmount(d.Dir, unix.MNT_DETACH))
		d.mounted = false
	}
	if rm := os.Remove(d.Image); !errors.Is(rm, os.ErrNotExist) {
		err = errors.Join(err, rm)
	}
	return err
}

func run(program string, args ...string) error {
	if out, err := exec.Command(program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}
