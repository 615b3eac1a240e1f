package vigil

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMarks(t *testing.T) {
	m := Marks{RefusePercent: 10, StopPercent: 5, RefuseBytes: 2 << 30, StopBytes: 1 << 30}
	for _, c := range []struct {
		name               string
		size, refuse, stop int64
	}{
		{"a large disk goes by bytes", 252 << 30, 2 << 30, 1 << 30},
		{"a small one by its share", 100 << 20, 10 << 20, 5 << 20},
	} {
		if refuse, stop := m.of(c.size); refuse != c.refuse || stop != c.stop {
			t.Errorf("%s: %d and %d, want %d and %d", c.name, refuse, stop, c.refuse, c.stop)
		}
	}
	if refuse, stop := (Marks{RefusePercent: 10, StopPercent: 10, RefuseBytes: 1 << 20, StopBytes: 2 << 20}).of(1 << 30); stop > refuse {
		t.Errorf("the node would stop at %d before it refuses at %d", stop, refuse)
	}
}

func TestRoom_LevelHasASlope(t *testing.T) {
	r := Room{Refuse: 800, Stop: 400}
	for _, c := range []struct {
		before Level
		free   int64
		want   Level
	}{
		{Roomy, 800, Roomy}, {Roomy, 799, Low}, {Low, 899, Low}, {Low, 900, Roomy},
		{Low, 400, Low}, {Low, 399, Out}, {Out, 449, Out}, {Out, 450, Low}, {Out, 900, Roomy},
	} {
		if r.Free = c.free; r.level(c.before) != c.want {
			t.Errorf("%d free after %s: %s, want %s", c.free, c.before, r.level(c.before), c.want)
		}
	}
}

func TestBallast(t *testing.T) {
	d := Disk{Dir: t.TempDir(), Marks: Marks{RefusePercent: 1, StopPercent: 1, RefuseBytes: 1 << 20, StopBytes: 1 << 20}}
	if d.inMemory() {
		t.Skip("the directory for tests lies in memory")
	}
	file := filepath.Join(d.Dir, BallastFile)
	const size = 4 << 20
	before, err := d.Look()
	if err != nil {
		t.Fatal(err)
	}
	if before.Free < 64<<20 {
		t.Skip("this machine has no room for a ballast")
	}
	for range 2 { // the second time it is there
		if got, err := d.Ballast(size); got != size || err != nil {
			t.Fatalf("laid %d bytes, %v", got, err)
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
	d.Marks.RefuseBytes, d.Marks.RefusePercent = before.Free, 90 // as good as full
	if got, err := d.Ballast(size); err != nil || got != 0 && before.Free > before.Size/2 {
		t.Errorf("laid %d bytes on a disk without room, %v", got, err)
	}
}
