package soak

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/program"
)

// TestRun runs a short soak with real nodes, without faults, and checks that every job is
// accounted for. Latencies and growth are not judged in so short a time.
func TestRun(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three processes")
	}
	binary, err := program.Find(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	o := Options{Binary: binary, Dir: filepath.Join(dir, "nodes"), Report: filepath.Join(dir, "report"), Duration: 8 * time.Second,
		Rate: 100, Queues: 40, Keys: 20, Seed: 11, Out: io.Discard}
	report, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	sums := report.Sums
	if len(report.Failures) > 0 || sums.Submitted != 800 || sums.Accepted != 800 || sums.Open > 0 || sums.Completed+sums.Dead+sums.Merged-sums.Late != 800 {
		t.Errorf("%+v; failures: %q", sums, report.Failures)
	}
	if sums.Merged == 0 || sums.Dead == 0 || report.Paused == 0 || report.Letters != uint64(sums.Dead) {
		t.Errorf("the mix was not complete: %+v, %d in the paused queue, %d dead letters", sums, report.Paused, report.Letters)
	}
	if err := report.WriteFiles(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"report.txt", "report.json", "samples.csv", "soak.svg"} {
		if info, err := os.Stat(filepath.Join(o.Report, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(o.Dir); !os.IsNotExist(err) {
		t.Errorf("the files of the nodes are left: %v", err)
	}
}
