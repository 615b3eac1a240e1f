package config

import (
	"cmp"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/health"
)

// Disk sets how much free space the file system of the data directory must have.
// A threshold is a share of its size or a number of bytes, whichever is less.
type Disk struct {
	// RefusePercent and RefuseBytes are the threshold below which the node accepts
	// no jobs. Default 10 and 2147483648.
	RefusePercent int   `toml:"refuse_below_percent"`
	RefuseBytes   int64 `toml:"refuse_below_bytes"`
	// StopPercent and StopBytes are the threshold below which the node makes no new
	// decisions as the authority and transfers it. Default 5 and 1073741824.
	StopPercent int   `toml:"stop_below_percent"`
	StopBytes   int64 `toml:"stop_below_bytes"`
	// BallastBytes is the size of a file that reserves space, to be released when
	// the disk is full; -1: none. Default 0: 2 % of the disk, at most 256 MiB.
	BallastBytes int64 `toml:"ballast_bytes"`
}

// withDefaults returns c with the default of every threshold that is not set.
func (c Disk) withDefaults() Disk {
	c.RefusePercent = cmp.Or(c.RefusePercent, 10)
	c.RefuseBytes = cmp.Or(c.RefuseBytes, 2<<30)
	c.StopPercent = cmp.Or(c.StopPercent, 5)
	c.StopBytes = cmp.Or(c.StopBytes, 1<<30)
	return c
}

// minThreshold is the smallest threshold in bytes: writes under way need some space.
const minThreshold = 16 << 20

// validate checks the ranges of all keys. The stop threshold must not be above the
// refuse threshold.
func (c *Disk) validate() error {
	for _, threshold := range []struct {
		name    string
		percent int
		bytes   int64
	}{{"refuse", c.RefusePercent, c.RefuseBytes}, {"stop", c.StopPercent, c.StopBytes}} {
		if threshold.percent < 1 || threshold.percent > 90 {
			return fmt.Errorf("disk.%s_below_percent is %d; must be 1 to 90", threshold.name, threshold.percent)
		}
		if threshold.bytes < minThreshold {
			return fmt.Errorf("disk.%s_below_bytes is %d; must be at least %d", threshold.name, threshold.bytes, minThreshold)
		}
	}
	switch {
	case c.StopPercent > c.RefusePercent || c.StopBytes > c.RefuseBytes:
		return fmt.Errorf("disk.stop_below_percent and disk.stop_below_bytes are %d and %d; must not be above disk.refuse_below_percent and disk.refuse_below_bytes, %d and %d",
			c.StopPercent, c.StopBytes, c.RefusePercent, c.RefuseBytes)
	case c.BallastBytes < health.NoBallast || c.BallastBytes > 1<<40:
		return fmt.Errorf("disk.ballast_bytes is %d; must be -1 for none, 0 for one that fits the disk, or up to %d", c.BallastBytes, int64(1)<<40)
	}
	return nil
}

// FileSystem returns the file system of the data directory with its thresholds.
func (c *Config) FileSystem() health.Disk {
	return health.Disk{Dir: c.Node.DataDir, Thresholds: health.Thresholds{
		RefusePercent: c.Disk.RefusePercent, StopPercent: c.Disk.StopPercent,
		RefuseBytes: c.Disk.RefuseBytes, StopBytes: c.Disk.StopBytes,
	}}
}
