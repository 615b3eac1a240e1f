package health

import (
	"os"
	"path/filepath"
	"testing"
)

func TestThresholds(t *testing.T) {
	m := Thresholds{RefusePercent: 10, StopPercent: 5, RefuseBytes: 2 << 30, StopBytes: 1 << 30}
	for _, c := range []struct {
		name               string
		size, refuse, stop int64
	}{
		{"a large disk uses the bytes", 252 << 30, 2 << 30, 1 << 30},
		{"a small disk uses the percentage", 100 << 20, 10 << 20, 5 << 20},
	} {
		if refuse, stop := m.bytes(c.size); refuse != c.refuse || stop != c.stop {
			t.Errorf("%s: %d and %d, want %d and %d", c.name, refuse, stop, c.refuse, c.stop)
		}
	}
	if refuse, stop := (Thresholds{RefusePercent: 10, StopPercent: 10, RefuseBytes: 1 << 20, StopBytes: 2 << 20}).bytes(1 << 30); stop > refuse {
		t.Errorf("the node would stop at %d before it refuses at %d", stop, refuse)
	}
}

func TestFreeSpace_LevelHysteresis(t *testing.T) {
	r := FreeSpace{Refuse: 800, Stop: 400}
	for _, c := range []struct {
		before DiskLevel
		free   int64
		want   DiskLevel
	}{
		{LevelOK, 800, LevelOK}, {LevelOK, 799, LevelLow}, {LevelLow, 899, LevelLow}, {LevelLow, 900, LevelOK},
		{LevelLow, 400, LevelLow}, {LevelLow, 399, LevelCritical}, {LevelCritical, 449, LevelCritical}, {LevelCritical, 450, LevelLow}, {LevelCritical, 900, LevelOK},
	} {
		if r.Free = c.free; r.diskLevel(c.before) != c.want {
			t.Errorf("%d free after %s: %s, want %s", c.free, c.before, r.diskLevel(c.before), c.want)
		}
	}
}

// TestFreeSpace_ScarceBeforeRefusal checks that space is scarce before jobs are refused.
func TestFreeSpace_ScarceBeforeRefusal(t *testing.T) {
	r := FreeSpace{Refuse: 800, Stop: 400}
	for _, c := range []struct {
		before bool
		free   int64
		want   bool
	}{{false, 1200, false}, {false, 1199, true}, {true, 1349, true}, {true, 1350, false}} {
		r.Free = c.free
		if got := r.scarce(c.before); got != c.want || r.diskLevel(LevelOK) != LevelOK {
			t.Errorf("%d free after %t: %t, want %t; the level is %s", c.free, c.before, got, c.want, r.diskLevel(LevelOK))
		}
	}
}

func TestBallast(t *testing.T) {
	d := Disk{Dir: t.TempDir(), Thresholds: Thresholds{RefusePercent: 1, StopPercent: 1, RefuseBytes: 1 << 20, StopBytes: 1 << 20}}
	if d.inMemory() {
		t.Skip("the directory for tests is in memory")
	}
	file := filepath.Join(d.Dir, BallastFile)
	const size = 4 << 20
	before, err := d.Measure()
	if err != nil {
		t.Fatal(err)
	}
	if before.Free < 64<<20 {
		t.Skip("not enough disk space for a ballast")
	}
	for range 2 { // the second time it exists
		if got, err := d.EnsureBallast(size); got != size || err != nil {
			t.Fatalf("allocated %d bytes, %v", got, err)
		}
	}
	if blocks := blocksOf(t, file); blocks < size {
		t.Errorf("it takes %d bytes of the disk; want at least %d", blocks, size)
	}
	if got, err := d.ReleaseBallast(); got != size || err != nil {
		t.Errorf("released %d bytes, %v", got, err)
	}
	if got, err := d.ReleaseBallast(); got != 0 || err != nil {
		t.Errorf("released %d bytes a second time, %v", got, err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is still there: %v", err)
	}
	d.Thresholds.RefuseBytes, d.Thresholds.RefusePercent = before.Free, 90 // practically full
	if got, err := d.EnsureBallast(size); err != nil || got != 0 && before.Free > before.Size/2 {
		t.Errorf("allocated %d bytes on a full disk, %v", got, err)
	}
}
