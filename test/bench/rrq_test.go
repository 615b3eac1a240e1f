package bench

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/program"
)

// TestRRQFigures measures pools of real runners in very short rounds.
func TestRRQFigures(t *testing.T) {
	if testing.Short() {
		t.Skip("starts real nodes")
	}
	path, err := program.Find(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"floor.queue.start200", "floor.rrq.go1x8", "floor.rrq.there200", "floor.rrq.back200", "floor.rrq.there1000", "floor.rrq.back1000",
		"rrq1.go1x8", "rrq1.start200", "rrq.there200", "rrq.back200", "rrq.there1000", "rrq.back1000",
		"rrq.spawn", "rrq.spawn.end", "rrq.spawn.resident", "rrq.spawn.files", "rrq.spawn.threads", "rrq.spawn.goroutines", "rrq.spawn.children",
		"rrq.slot.resident", "rrq.slot.inuse", "rrq.flight.resident", "rrq.flight.inuse", "rrq.runner.resident",
		"rrq.trip", "rrq.recover", "rrq.drain",
	}
	// Growth may be zero or negative.
	mayBeNothing := []string{"rrq.spawn.", "rrq.slot.", "rrq.flight."}
	figures, err := Run(t.Context(), Options{Only: []string{"rrq1.go1x8", "rrq1.start200", "rrq."}, Round: 150 * time.Millisecond, Rounds: 1, Binary: path})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range figures {
		names = append(names, f.Name)
		if f.Value <= 0 && !slices.ContainsFunc(mayBeNothing, func(p string) bool { return strings.HasPrefix(f.Name, p) }) {
			t.Errorf("%s is %v", f.Name, f.Value)
		}
		if f.Jobs != f.Settled {
			t.Errorf("%s: accepted %d, settled %d", f.Name, f.Jobs, f.Settled)
		}
	}
	if !slices.Equal(names, want) {
		t.Errorf("measured %v, want %v", names, want)
	}
}

// TestCommand_Skips checks that a machine without Python skips only its figures.
func TestCommand_Skips(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := python.command("bin/yardmaster"); err == nil || err.Error() != "skipped: python3 is not installed" {
		t.Errorf("error %v", err)
	}
	f := Figure{Name: "rrq1.py1x1", Skipped: "python3 is not installed"}
	if got := f.value(); got != "skipped" {
		t.Errorf("value %q", got)
	}
	if cmd, err := golang.command("bin/yardmaster"); err != nil || !slices.Equal(cmd, []string{"bin/yardmaster", "runner"}) {
		t.Errorf("command %q, error %v", cmd, err)
	}
}

func TestReadStarts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "starts")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("5 100\n6 120\n5 90\n") // the first start of a job counts
	if got, err := readStarts(file); err != nil || len(got) != 2 || got[5] != 90 || got[6] != 120 {
		t.Errorf("%v, error %v", got, err)
	}
	write("5 x\n")
	if got, err := readStarts(file); err == nil {
		t.Errorf("got %v, want an error", got)
	}
}
