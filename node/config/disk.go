package config

import (
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

// fill sets the defaults.
func (c *Disk) fill() {
	setDefault(&c.RefusePercent, 10)
	setDefault(&c.RefuseBytes, 2<<30)
	setDefault(&c.StopPercent, 5)
	setDefault(&c.StopBytes, 1<<30)
}

// minThreshold is the smallest threshold in bytes: writes under way need some space.
const minThreshold = 16 << 20

func (c *Disk) validate() error {
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
		if b.value < minThreshold {
			return fmt.Errorf("disk.%s is %d; must be at least %d", b.key, b.value, minThreshold)
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

// ReleaseBallast deletes the ballast file in the data directory and returns how many
// bytes that freed. The node may run meanwhile.
func (c *Config) ReleaseBallast() (int64, error) { return c.FileSystem().ReleaseBallast() }
