package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/must"
)

// ScaleOptions configures a run of [RunScale].
type ScaleOptions struct {
	Only []string // names of curves to measure; empty means all
	// Sizes are the sizes at which each curve is measured, by its name, in increasing order.
	Sizes    map[string][]int
	Round    time.Duration // length of a load
	Rounds   int           // loads of which the median counts
	Binary   string        // path of the program to measure
	Out      io.Writer     // receives each point as a line of JSON
	Progress io.Writer     // receives messages for people
}

// ScaleSizes returns the sizes of the full run.
func ScaleSizes() map[string][]int {
	return map[string][]int{
		"waiting": {0, 10_000, 100_000, million, 10 * million},
		"workers": {10, 100, 1000, 10_000},
		"queues":  {10, 100, 1000, 10_000},
		"members": {1, 3, 5},
		"time":    {1, 2, 3, 4, 5, 6, 7, 8, 9, 10},
	}
}

// scaleCurve is a curve with its measurement.
type scaleCurve struct {
	Curve
	// measure measures the points at some sizes and passes them to add.
	measure func(t *task, sizes []int, add func(size int, p *Point))
}

// scaleCurves returns all curves, without points.
func (b *bench) scaleCurves() []scaleCurve {
	return []scaleCurve{
		{Curve{Name: "waiting", Title: "Jobs that wait: three nodes", Axis: "waiting jobs", targets: map[string]scaleTarget{
			chartHeap: {atMost: 150}, chartLoaded: {atMost: 150}, chartCopy: {atMost: 10}, chartRestart: {atMost: 20}, chartStart: {ofFirst: 1.25},
		}}, b.measureWaiting},
		{Curve{Name: "workers", Title: "Idle workers: one node", Axis: "idle workers"}, b.measureWorkers},
		{Curve{Name: "queues", Title: "Queues with jobs: three nodes", Axis: "queues"}, b.measureQueues},
		{Curve{Name: "members", Title: "Members", Axis: "members"}, b.measureMembers},
		{Curve{Name: "time", Title: "A steady load: three nodes at four fifths of their highest rate", Axis: "minutes", targets: map[string]scaleTarget{
			chartResident: {ofFirst: 1.1}, chartDisk: {ofFirst: 1.1}, chartSteadyStart: {ofFirst: 1.25},
		}}, b.measureTime},
	}
}

// RunScale measures curves and returns those that it has begun. It leaves no process behind.
func RunScale(ctx context.Context, o ScaleOptions) (curves []*Curve, err error) {
	b := &bench{Options: Options{Round: o.Round, Rounds: o.Rounds, Binary: o.Binary, Out: o.Out, Progress: o.Progress}}
	all := b.scaleCurves()
	for _, name := range o.Only {
		if !slices.ContainsFunc(all, func(c scaleCurve) bool { return c.Name == name }) {
			return nil, fmt.Errorf("%s: no curve has that name; there are waiting, workers, queues, members and time", name)
		}
	}
	for i := range all {
		c := &all[i]
		if sizes := o.Sizes[c.Name]; len(sizes) > 0 && (len(o.Only) == 0 || slices.Contains(o.Only, c.Name)) {
			curves = append(curves, &c.Curve)
			if err := b.measureCurve(ctx, c, sizes); err != nil {
				return curves, err
			}
		}
	}
	return curves, nil
}

// measureCurve measures the points of a curve in a new directory, which it removes unless a
// measurement fails.
func (b *bench) measureCurve(ctx context.Context, c *scaleCurve, sizes []int) error {
	dir, err := os.MkdirTemp("", "yardmaster-scale-")
	if err != nil {
		return fmt.Errorf("create a directory: %w", err)
	}
	b.logf("%s: starting", c.Name)
	err = perform(ctx, dir, func(t *task) {
		c.measure(t, sizes, func(size int, p *Point) {
			c.add(size, p)
			b.logf("  %d %s: %s", size, c.Axis, p.text())
			if b.Out != nil {
				must.Do(json.NewEncoder(b.Out).Encode(p))
			}
		})
	})
	if err != nil {
		return fmt.Errorf("%s: %w; logs and data are in %s", c.Name, err, dir)
	}
	return os.RemoveAll(dir)
}

// text returns the values for people, in one line.
func (p *Point) text() string {
	var parts []string
	for _, v := range p.Values {
		parts = append(parts, fmt.Sprintf("%s %s %s %s", v.Chart, v.Name, digits(v.Value), v.Unit))
	}
	return strings.Join(parts, "; ")
}

// rounds measures several rounds of a load and returns their figure.
func (b *bench) rounds(t *task, measure measurement) (f Figure) {
	for range b.Rounds {
		var r round
		must.Do(perform(t, t.dir, func(t *task) { r = measure(t) }))
		f.add(r)
	}
	f.finish()
	return f
}

// WritePictures writes a picture of each curve to a directory, which it creates.
func WritePictures(dir string, curves []*Curve) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the directory of the pictures: %w", err)
	}
	for _, c := range curves {
		var b strings.Builder
		if err := c.picture().WriteSVG(&b); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, c.Name+".svg"), []byte(b.String()), 0o644); err != nil {
			return fmt.Errorf("write the picture of %s: %w", c.Name, err)
		}
	}
	return nil
}
