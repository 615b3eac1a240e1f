package bench

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{0: nil, 3: {3}, 2: {3, 1, 2}, 2.5: {4, 1, 2, 3}} {
		if got := median(values); got != want {
			t.Errorf("median of %v is %v, want %v", values, got, want)
		}
	}
}

func TestQuantile(t *testing.T) {
	var hundred []float64
	for i := range 100 {
		hundred = append(hundred, float64(100-i))
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 51, 0.99: 100, 1: 100} {
		if got := quantile(hundred, q); got != want {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if got := quantile(nil, 0.5); got != 0 {
		t.Errorf("quantile of no values is %v", got)
	}
}

func TestCompare(t *testing.T) {
	floors := []Figure{{Name: "queue", Value: 1000}, {Name: "start", Value: 8, P99: 20}}
	for _, c := range []struct {
		name    string
		figure  Figure
		target  target
		words   string
		reached bool
		ratio   float64
	}{
		{"fast", Figure{Value: 900}, target{floor: "queue", atLeast: 500, ratio: 0.8}, "≥ 0.8 of queue, ≥ 500", true, 0.9},
		{"slow compared with the floor", Figure{Value: 700}, target{floor: "queue", atLeast: 500, ratio: 0.8}, "≥ 0.8 of queue, ≥ 500", false, 0.7},
		{"slow", Figure{Value: 900}, target{floor: "queue", atLeast: 950, ratio: 0.8}, "≥ 0.8 of queue, ≥ 950", false, 0.9},
		{"low latency", Figure{Value: 4, P99: 10}, target{floor: "start", atMost: 4, p99: 10, maxRatio: 1}, "≤ 1 of start, ≤ 4, p99 ≤ 10", true, 0.5},
		{"late tail", Figure{Value: 4, P99: 21}, target{floor: "start", maxRatio: 1}, "≤ 1 of start", false, 0.5},
		{"no floor measured", Figure{Value: 4}, target{floor: "other", ratio: 1}, "", false, 0},
	} {
		f := c.figure
		f.compare(c.target, floors, false)
		if f.Target != c.words || f.Ratio != c.ratio || (f.Reached != nil) != (c.words != "") {
			t.Errorf("%s: %+v, want %q and ratio %v", c.name, f, c.words, c.ratio)
		}
		if f.Reached != nil && *f.Reached != c.reached {
			t.Errorf("%s: reached is %t", c.name, *f.Reached)
		}
	}
}

func TestWriteReport(t *testing.T) {
	yes := true
	var out strings.Builder
	err := WriteReport(&out, []Figure{
		{Name: "floor", Value: 18234.5, Unit: "jobs/s", Rounds: []float64{17000, 18234.5, 19000}, Cores: 1.5, Machine: 1.9, Micros: 61.7},
		{Name: "start", Value: 2.345, P99: 12.34, Unit: "ms", Rounds: []float64{2.345}, Ratio: 0.5, Target: "≤ 4", Reached: &yes, Note: "64 workers"},
		{Name: "limit", Value: 17000, Unit: "jobs/s", Rounds: []float64{16000, 17000, 18000}, Ratio: 0.955, Ratios: []float64{0.9, 0.955, 1.1}},
		{Name: "runners", Skipped: "no python3"},
	})
	want := `FIGURE   VALUE           ROUNDS          OF FLOOR             TARGET  REACHED  CORES  OF ALL  µS/JOB
floor    18234 jobs/s    17000 to 19000                                        1.50   1.90    62
start    2.35 / 12.3 ms                  0.50                 ≤ 4     yes                     
limit    17000 jobs/s    16000 to 18000  0.95 (0.90 to 1.10)                                  
runners  skipped                                                                              

start    64 workers
runners  skipped: no python3
`
	if err != nil || !strings.HasSuffix(out.String(), "\n\n"+want) {
		t.Errorf("error %v, table\n%s\nwant\n%s", err, out.String(), want)
	}
}

// TestMeasure_TakesTurns checks that experiments of an interleaved suite take turns, each
// with its own number of rounds, and that a figure is computed from all its rounds.
func TestMeasure_TakesTurns(t *testing.T) {
	var order []string
	run := func(name string, value float64) measurement {
		return func(*task) round {
			order = append(order, name)
			return round{value: value + float64(len(order)), jobs: 10, settled: 10, cores: 1.5, cpu: 500 * time.Microsecond}
		}
	}
	checked := 0
	s := suite{name: "turns", interleaved: true, names: []experiment{
		{name: "floor.a", run: run("a", 0)},
		{name: "b", run: run("b", 10), target: target{floor: "floor.a", ratio: 2}, check: func() error { checked++; return nil }},
		{name: "c", rounds: 1, run: run("c", 0)},
	}}
	b := &bench{Options: Options{Rounds: 3}}
	if err := perform(t.Context(), filepath.Join(t.TempDir(), "suite"), func(t *task) { b.runSuite(t, s) }); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(order, ""); got != "abcabab" || checked != 1 {
		t.Errorf("order %s, checked %d times", got, checked)
	}
	want := Figure{
		Name: "b", Value: 15, Rounds: []float64{12, 15, 17}, Jobs: 30, Settled: 30, Cores: 1.5, Micros: 50,
		Floor: "floor.a", Ratio: 3.75, Ratios: []float64{12, 3.75, 17.0 / 6}, Target: "≥ 2 of floor.a", Reached: new(true),
	}
	if got := b.figures[1]; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
