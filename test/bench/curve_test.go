package bench

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// testCurve returns a curve with a missing value at its first size.
func testCurve() *Curve {
	c := &Curve{Name: "waiting", Title: "Jobs that wait", Axis: "waiting jobs",
		targets: map[string]scaleTarget{"Heap": {atMost: 150}, "Start": {ofFirst: 1.25}}}
	for size, heap := range []float64{0, 140, 160} {
		p := &Point{}
		if heap > 0 {
			p.set("Heap", "n1", "bytes", heap)
		}
		p.setLatency("Start", &Figure{Value: 2, P99: 4 + float64(size)})
		c.add([]int{0, 10_000, 100_000}[size], p)
	}
	return c
}

func TestCurve_Targets(t *testing.T) {
	c := testCurve()
	for _, want := range []struct {
		point       int
		chart, name string
		target      string
		reached     bool
	}{
		{1, "Heap", "n1", "≤ 150", true}, {2, "Heap", "n1", "≤ 150", false},
		{1, "Start", "p99", "≤ 1.25 of that with 0", true}, {2, "Start", "p99", "≤ 1.25 of that with 0", false},
		{2, "Start", "p50", "≤ 1.25 of that with 0", true},
	} {
		v := c.Points[want.point].find(want.chart, want.name)
		if v == nil || v.Target != want.target || v.Reached == nil || *v.Reached != want.reached {
			t.Errorf("point %d, %s %s: %+v", want.point, want.chart, want.name, v)
		}
	}
	if first := c.Points[0].find("Start", "p50"); first.Reached != nil {
		t.Errorf("the first point is compared with itself: %+v", first)
	}
	line, err := json.Marshal(c.Points[1])
	if want := `{"curve":"waiting","size":10000,"of":"waiting jobs","values":[{"chart":"Heap","name":"n1","value":140,"unit":"bytes","target":"≤ 150","reached":true},`; err != nil || !strings.HasPrefix(string(line), want) {
		t.Errorf("%s, %v", line, err)
	}
}

func TestWriteTables(t *testing.T) {
	var b strings.Builder
	if err := WriteTables(&b, []*Curve{testCurve()}); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(b.String()) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	table := strings.Join(rows, "\n")
	for _, want := range []string{
		"waiting jobs 0 10k 100k TARGET REACHED", "Heap, n1 (bytes) – 140 160 ≤ 150 no",
		"Start, p50 (ms) 2.00 2.00 2.00 ≤ 1.25 of that with 0 yes", "Start, p99 (ms) 4.00 5.00 6.00 ≤ 1.25 of that with 0 no",
	} {
		if !strings.Contains(table, want) {
			t.Errorf("no row %q in\n%s", want, table)
		}
	}
}

func TestWritePictures(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "scale")
	if err := WritePictures(dir, []*Curve{testCurve()}); err != nil {
		t.Fatal(err)
	}
	picture, err := os.ReadFile(filepath.Join(dir, "waiting.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]int{
		`class="panel"`: 2, "<path": 3, "<circle": 8, "Heap, bytes (target ≤ 150)": 1, "Start, ms (target: as with 0)": 1, ">p99<": 1, ">100k<": 2, ">waiting jobs<": 2, "NaN": 0,
	} {
		if got := strings.Count(string(picture), part); got != want {
			t.Errorf("%s occurs %d times, want %d", part, got, want)
		}
	}
}

// TestScaleSizes checks that each curve has sizes for the full run.
func TestScaleSizes(t *testing.T) {
	sizes := ScaleSizes()
	for _, c := range (&bench{}).scaleCurves() {
		if len(sizes[c.Name]) < 3 {
			t.Errorf("%s has the sizes %v", c.Name, sizes[c.Name])
		}
		delete(sizes, c.Name)
	}
	if len(sizes) > 0 {
		t.Errorf("sizes without a curve: %v", sizes)
	}
}

func TestWorkerPlan(t *testing.T) {
	p := workerPlan{queues: []string{"a", "b", "c"}, workers: 2, credits: 8}
	if p.capacity() != 24 || strings.Join(p.queuesOf(0), "") != "ac" || strings.Join(p.queuesOf(1), "") != "b" {
		t.Errorf("capacity %d, queues %v and %v", p.capacity(), p.queuesOf(0), p.queuesOf(1))
	}
	p = workerPlan{queue: "a", workers: 2, credits: 8}
	if p.capacity() != 16 || strings.Join(p.queuesOf(1), "") != "a" {
		t.Errorf("capacity %d, queues %v", p.capacity(), p.queuesOf(1))
	}
}
