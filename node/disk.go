package node

import (
	"fmt"

	"yardmaster/vigil"
)

// DiskConfig says how much room the data directory's file system must have. A
// mark is a share of it or a number of bytes, whichever is less.
type DiskConfig struct {
	// RefusePercent and RefuseBytes are the mark below which the node takes no
	// jobs in. Default 10 and 2147483648.
	RefusePercent int   `toml:"refuse_below_percent"`
	RefuseBytes   int64 `toml:"refuse_below_bytes"`
	// StopPercent and StopBytes are the mark below which the node begins nothing
	// new as the authority, and hands it over. Default 5 and 1073741824.
	StopPercent int   `toml:"stop_below_percent"`
	StopBytes   int64 `toml:"stop_below_bytes"`
	// BallastBytes is the size of a file that only takes room, to be given back
	// when the disk is full; -1: none. Default 0: 2 % of the disk, at most 256 MiB.
	BallastBytes int64 `toml:"ballast_bytes"`
}

func (c *DiskConfig) fill() {
	fill(&c.RefusePercent, 10)
	fill(&c.RefuseBytes, 2<<30)
	fill(&c.StopPercent, 5)
	fill(&c.StopBytes, 1<<30)
}

// leastMark is the smallest mark in bytes: what is under way needs some room.
const leastMark = 16 << 20

func (c *DiskConfig) validate() error {
	for _, p := range []struct {
		key   string
		value int
	}{{"refuse_below_percent", c.RefusePercent}, {"stop_below_percent", c.StopPercent}} {
		if p.value < 1 || p.value > 90 {
			return fmt.Errorf("disk.%s is %d; must be 1 to 90", p.key, p.value)
		}
	}
	for _, b := range []struct {
		key   string
		value int64
	}{{"refuse_below_bytes", c.RefuseBytes}, {"stop_below_bytes", c.StopBytes}} {
		if b.value < leastMark {
			return fmt.Errorf("disk.%s is %d; must be at least %d", b.key, b.value, leastMark)
		}
	}
	switch {
	case c.StopPercent > c.RefusePercent || c.StopBytes > c.RefuseBytes:
		return fmt.Errorf("disk.stop_below_percent and disk.stop_below_bytes are %d and %d; must not be above disk.refuse_below_percent and disk.refuse_below_bytes, %d and %d",
			c.StopPercent, c.StopBytes, c.RefusePercent, c.RefuseBytes)
	case c.BallastBytes < vigil.NoBallast || c.BallastBytes > 1<<40:
		return fmt.Errorf("disk.ballast_bytes is %d; must be -1 for none, 0 for one that fits the disk, or up to %d", c.BallastBytes, int64(1)<<40)
	}
	return nil
}

// disk is the file system that the node's data lies in, with its marks.
func (c *Config) disk() vigil.Disk {
	return vigil.Disk{Dir: c.Node.DataDir, Marks: vigil.Marks{
		RefusePercent: c.Disk.RefusePercent, StopPercent: c.Disk.StopPercent,
		RefuseBytes: c.Disk.RefuseBytes, StopBytes: c.Disk.StopBytes,
	}}
}

// ReleaseBallast gives back the room that the ballast in the data directory takes,
// whether the node runs or not, and tells how many bytes that is.
func (c *Config) ReleaseBallast() (int64, error) { return c.disk().ReleaseBallast() }
