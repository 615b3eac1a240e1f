package bench

import (
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"text/tabwriter"

	"github.com/yardmaster-dev/yardmaster/test/chart"
)

// Curve is a set of values that were measured at several sizes.
type Curve struct {
	Name   string // also of the file of its picture
	Title  string
	Axis   string // what the sizes count
	Points []Point

	targets map[string]scaleTarget // by chart
}

// scaleTarget is what all values of a chart should reach.
type scaleTarget struct {
	atMost  float64 // 0: none
	ofFirst float64 // maximum ratio to the value at the first size; 0: none
}

// Point is what was measured at one size, written as one line of JSON.
type Point struct {
	Curve  string  `json:"curve"`
	Size   int     `json:"size"`
	Of     string  `json:"of"` // what the size counts
	Values []Value `json:"values"`
}

// Value is one value of a point. It is on the line Name of a chart.
type Value struct {
	Chart string  `json:"chart"`
	Name  string  `json:"name,omitempty"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Target describes the target, and Reached reports whether it was reached.
	// Both are absent without a target.
	Target  string `json:"target,omitempty"`
	Reached *bool  `json:"reached,omitempty"`
}

// set adds a value.
func (p *Point) set(chart, name, unit string, value float64) {
	p.Values = append(p.Values, Value{Chart: chart, Name: name, Unit: unit, Value: value})
}

// setLatency adds the median and the 99th percentile of a latency in ms.
func (p *Point) setLatency(chart string, f *Figure) {
	p.set(chart, "p50", milliseconds, f.Value)
	p.set(chart, "p99", milliseconds, f.P99)
}

// find returns the value on a line of a chart, or nil.
func (p *Point) find(chart, name string) *Value {
	i := slices.IndexFunc(p.Values, func(v Value) bool { return v.Chart == chart && v.Name == name })
	if i < 0 {
		return nil
	}
	return &p.Values[i]
}

// add adds a point, and compares its values with their targets.
func (c *Curve) add(size int, p *Point) {
	p.Curve, p.Size, p.Of = c.Name, size, c.Axis
	for i := range p.Values {
		v := &p.Values[i]
		target := c.targets[v.Chart]
		switch {
		case target.atMost > 0:
			v.Target, v.Reached = "≤ "+digits(target.atMost), new(v.Value <= target.atMost)
		case target.ofFirst > 0 && len(c.Points) > 0:
			if first := c.Points[0].find(v.Chart, v.Name); first != nil {
				v.Target = fmt.Sprintf("≤ %g of that with %s", target.ofFirst, chart.Count(c.Points[0].Size))
				v.Reached = new(v.Value <= target.ofFirst*first.Value)
			}
		}
	}
	c.Points = append(c.Points, *p)
}

// lines returns the last value of each line, in the order of the last point, which has all
// lines and their targets.
func (c *Curve) lines() (lines []Value) {
	for i := range slices.Backward(c.Points) {
		for _, v := range c.Points[i].Values {
			if !slices.ContainsFunc(lines, func(l Value) bool { return l.Chart == v.Chart && l.Name == v.Name }) {
				lines = append(lines, v)
			}
		}
	}
	return lines
}

// picture returns the picture of the curve, with a chart for each quantity.
func (c *Curve) picture() *chart.Picture {
	p := &chart.Picture{Title: c.Title, Columns: 2, Width: 480, Height: 240,
		Note: fmt.Sprintf("Logarithmic x axis: %s. Dashed: the target. %d processors, %s/%s.", c.Axis, runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)}
	var sizes []int
	for i := range c.Points {
		sizes = append(sizes, c.Points[i].Size)
	}
	ticks := chart.LogAxis(sizes)
	for _, l := range c.lines() {
		title := l.Chart + ", " + l.Unit
		target := c.targets[l.Chart]
		if target.atMost > 0 {
			title += " (target ≤ " + chart.Count(int(target.atMost)) + ")"
		} else if target.ofFirst > 0 {
			title += " (target: as with " + chart.Count(sizes[0]) + ")"
		}
		i := slices.IndexFunc(p.Panels, func(p chart.Panel) bool { return p.Title == title })
		if i < 0 {
			i = len(p.Panels)
			p.Panels = append(p.Panels, chart.Panel{Title: title, XTitle: c.Axis, XTicks: ticks, Text: axisText, Bound: target.atMost, Dots: true})
		}
		line := chart.Line{Name: l.Name}
		for at := range c.Points {
			y := math.NaN()
			if v := c.Points[at].find(l.Chart, l.Name); v != nil {
				y = v.Value
			}
			line.Points = append(line.Points, chart.Point{X: ticks[at].At, Y: y})
		}
		p.Panels[i].Lines = append(p.Panels[i].Lines, line)
	}
	return p
}

// axisText formats a value of a y axis.
func axisText(v float64) string {
	if v >= 1000 {
		return chart.Count(int(v))
	}
	return fmt.Sprintf("%.3g", v)
}

// WriteTables writes the curves as tables for people, each with a column for each size.
func WriteTables(w io.Writer, curves []*Curve) error {
	table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(table, "%d processors, %s, %s/%s\n", runtime.NumCPU(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, c := range curves {
		fmt.Fprintf(table, "\n%s\n\n%s\t", c.Title, c.Axis)
		for i := range c.Points {
			fmt.Fprintf(table, "%s\t", chart.Count(c.Points[i].Size))
		}
		fmt.Fprintln(table, "TARGET\tREACHED")
		for _, l := range c.lines() {
			c.writeRow(table, &l)
		}
	}
	return table.Flush()
}

// writeRow writes the row of a line: a value for each size, the target, and whether all
// values reach it.
func (c *Curve) writeRow(w io.Writer, l *Value) {
	name := l.Chart
	if l.Name != "" {
		name += ", " + l.Name
	}
	fmt.Fprintf(w, "%s (%s)\t", name, l.Unit)
	reached := ""
	for i := range c.Points {
		v := c.Points[i].find(l.Chart, l.Name)
		switch {
		case v == nil:
			fmt.Fprint(w, "–\t")
			continue
		case v.Reached != nil && !*v.Reached:
			reached = "no"
		case v.Reached != nil && reached == "":
			reached = "yes"
		}
		fmt.Fprintf(w, "%s\t", digits(v.Value))
	}
	fmt.Fprintf(w, "%s\t%s\n", l.Target, reached)
}
