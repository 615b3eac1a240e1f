package vigil

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Level is how much room a disk has.
type Level uint8

// The levels, from good to bad.
const (
	Roomy Level = iota // all goes on
	Low                // no job is taken in
	Out                // nothing new is begun, and the authority goes elsewhere
)

func (l Level) String() string { return [...]string{"roomy", "low", "out"}[min(l, Out)] }

// Marks say below how much free space a disk is low, and below how much it is
// out: each is a share of the disk, in percent, or a number of bytes, whichever
// is less. So a small disk keeps something for what is under way, and a large one
// may be used nearly whole.
type Marks struct {
	RefusePercent, StopPercent int
	RefuseBytes, StopBytes     int64
}

// Of a disk of so many bytes: below how many free bytes it is low, and out.
func (m Marks) of(size int64) (refuse, stop int64) {
	refuse = min(size/100*int64(m.RefusePercent), m.RefuseBytes)
	return refuse, min(size/100*int64(m.StopPercent), m.StopBytes, refuse)
}

// Room is what a file system has, in bytes.
type Room struct {
	Size, Free   int64 // Free is what the node may still use
	Refuse, Stop int64 // the marks, as they are on this disk
}

// again is how much more than a mark must be free for the level above it to be
// trusted: without it a disk at the mark would open and close the door by turns.
func again(mark int64) int64 { return mark + mark/8 }

// level is how the room is to be called, after it was called before.
func (r Room) level(before Level) Level {
	refuse, stop := r.Refuse, r.Stop
	if before >= Low {
		refuse = again(refuse)
	}
	if before >= Out {
		stop = again(stop)
	}
	switch {
	case r.Free < stop:
		return Out
	case r.Free < refuse:
		return Low
	}
	return Roomy
}

// Disk is the file system that a directory lies in.
type Disk struct {
	Dir   string
	Marks Marks
}

// Look measures the room.
func (d Disk) Look() (Room, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(d.Dir, &st); err != nil {
		return Room{}, fmt.Errorf("measure the room in %s: %w", d.Dir, err)
	}
	r := Room{Size: int64(st.Blocks) * st.Bsize, Free: int64(st.Bavail) * st.Bsize}
	r.Refuse, r.Stop = d.Marks.of(r.Size)
	return r, nil
}

// inUnits writes bytes as people do.
func inUnits(bytes int64) string {
	switch {
	case bytes >= 10<<30:
		return fmt.Sprintf("%d GiB", bytes>>30)
	case bytes >= 1<<20:
		return fmt.Sprintf("%d MiB", bytes>>20)
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}
