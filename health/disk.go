package health

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// DiskLevel classifies the free space of a disk.
type DiskLevel uint8

// The levels, from good to bad.
const (
	LevelOK       DiskLevel = iota // no restriction
	LevelLow                       // the node accepts no jobs
	LevelCritical                  // the node also gives up the authority
)

func (l DiskLevel) String() string {
	return [...]string{"ok", "low", "critical"}[min(l, LevelCritical)]
}

// Thresholds are the free space below which a disk is low (refuse), and below which it
// is critical (stop). Each is a percentage of the disk or a number of bytes, whichever
// is less, so that a small disk keeps a reserve and a large one can be used almost
// completely.
type Thresholds struct {
	RefusePercent, StopPercent int
	RefuseBytes, StopBytes     int64
}

// bytes returns both thresholds in bytes for a disk of that size. The stop threshold is
// at most the refuse threshold.
func (t Thresholds) bytes(size int64) (refuse, stop int64) {
	refuse = min(size/100*int64(t.RefusePercent), t.RefuseBytes)
	return refuse, min(size/100*int64(t.StopPercent), t.StopBytes, refuse)
}

// FreeSpace is the state of a file system, in bytes.
type FreeSpace struct {
	Size, Free   int64 // Free is what an unprivileged process may still use
	Refuse, Stop int64 // the thresholds for this disk
}

// withHysteresis returns how much must be free to leave the level below a
// threshold: an eighth more. Without it a disk at the threshold would open and
// close the intake in turn.
func withHysteresis(threshold int64) int64 { return threshold + threshold/8 }

// diskLevel returns the level of the disk, given its level at the previous check. To leave
// a level for a better one, more must be free than its threshold: see withHysteresis.
func (f FreeSpace) diskLevel(previous DiskLevel) DiskLevel {
	refuse, stop := f.Refuse, f.Stop
	if previous >= LevelLow {
		refuse = withHysteresis(refuse)
	}
	if previous >= LevelCritical {
		stop = withHysteresis(stop)
	}
	switch {
	case f.Free < stop:
		return LevelCritical
	case f.Free < refuse:
		return LevelLow
	}
	return LevelOK
}

// scarce reports whether what can be made again must give way, given whether it had to at the previous
// check: less is free than half as much again as the threshold below which jobs are refused. To be
// scarce no more, more must be free than that, see withHysteresis.
func (f FreeSpace) scarce(previous bool) bool {
	threshold := f.Refuse + f.Refuse/2
	if previous {
		threshold = withHysteresis(threshold)
	}
	return f.Free < threshold
}

// Disk is the file system of a directory, with its thresholds.
type Disk struct {
	Dir        string
	Thresholds Thresholds
}

// Measure returns the free space.
func (d Disk) Measure() (FreeSpace, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(d.Dir, &st); err != nil {
		return FreeSpace{}, fmt.Errorf("measure the room in %s: %w", d.Dir, err)
	}
	f := FreeSpace{Size: int64(st.Blocks) * st.Bsize, Free: int64(st.Bavail) * st.Bsize}
	f.Refuse, f.Stop = d.Thresholds.bytes(f.Size)
	return f, nil
}

// formatBytes formats a number of bytes with a binary unit, rounded down.
func formatBytes(bytes int64) string {
	switch {
	case bytes >= 10<<30:
		return fmt.Sprintf("%d GiB", bytes>>30)
	case bytes >= 1<<20:
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}
