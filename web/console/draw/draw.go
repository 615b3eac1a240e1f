// Package draw draws charts as SVG, which needs neither scripts nor styles: the style sheet
// of the page has the colours of its classes.
package draw

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"
)

// Series is a line of a chart.
type Series struct {
	Name   string
	Points []Point // in order of time
}

// Point is a value at a time. A NaN is a value that is not known: the line has a gap there.
type Point struct {
	At    time.Time
	Value float64
}

// Chart is series over the same time, from 0 on.
type Chart struct {
	Title    string // describes the chart to a screen reader
	From, To time.Time
	Series   []Series
	Marks    []Mark               // moments, as lines across the chart
	Label    func(float64) string // of a value on the axis; nil: a number with at most three digits
}

// Mark is something that happened at a moment.
type Mark struct {
	At    time.Time
	Kind  string // class of its colour, after "happening-"; a deploy has another shape
	Label string // shown when the pointer rests on it
}

// Size of a chart in pixels. It is as wide as its place: only the lines are stretched, so that
// texts have the same size in every chart. The style sheet leaves space left of class chart
// for the labels of values.
const (
	height = 180.0
	top    = 10.0
	bottom = 22.0
)

// units is the width of a chart in the coordinates of its lines.
const units = 1000.0

// share returns where a time is between two: 0 at the first, 1 at the second.
func share(at, from, to time.Time) float64 {
	return min(max(float64(at.Sub(from))/float64(max(to.Sub(from), 1)), 0), 1)
}

// percent returns a share as a coordinate.
func percent(share float64) string { return fmt.Sprintf("%.2f%%", 100*share) }

// Lines returns a chart as lines that differ in colour and in how they are dashed.
func Lines(c *Chart) template.HTML {
	label := c.Label
	if label == nil {
		label = short
	}
	ceiling := ceil(c.highest())
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="chart" height="%g" role="img" aria-label="%s">`, height, template.HTMLEscapeString(c.Title))
	const lines = 3 // of the grid
	y := func(i int) float64 { return height - bottom - (height-top-bottom)*float64(i)/(lines-1) }
	for i := range lines {
		fmt.Fprintf(&b, `<text class="axis" x="-6" y="%.1f" text-anchor="end">%s</text>`, y(i)+4, template.HTMLEscapeString(label(ceiling*float64(i)/(lines-1))))
	}
	b.WriteString(`<svg class="plot">`)
	for i := range lines {
		fmt.Fprintf(&b, `<line class="grid" x1="0" y1="%.1f" x2="100%%" y2="%.1f"/>`, y(i), y(i))
	}
	writeTimes(&b, c.From, c.To, height-5)
	for i := range c.Marks {
		at := percent(share(c.Marks[i].At, c.From, c.To))
		fmt.Fprintf(&b, `<line class="mark-line happening-%s" x1="%s" y1="%g" x2="%s" y2="%g"><title>%s</title></line>`,
			template.HTMLEscapeString(c.Marks[i].Kind), at, top, at, height-bottom, template.HTMLEscapeString(c.Marks[i].Label))
	}
	fmt.Fprintf(&b, `<svg width="100%%" height="%g" viewBox="0 0 %g %g" preserveAspectRatio="none">`, height, units, height)
	for i, s := range c.Series {
		fmt.Fprintf(&b, `<path class="line line-%d" d="%s"/>`, i+1, linePath(s.Points, c.From, c.To, ceiling))
	}
	b.WriteString("</svg></svg></svg>")
	return template.HTML(b.String()) //nolint:gosec // only numbers, and texts, which are escaped
}

// highest returns the largest value that is known, at least 0.
func (c *Chart) highest() (highest float64) {
	for _, s := range c.Series {
		for _, p := range s.Points {
			if p.Value > highest { // not if it is not known
				highest = p.Value
			}
		}
	}
	return highest
}

// linePath returns the path of a line. A point between two gaps is a short line.
func linePath(points []Point, from, to time.Time, ceiling float64) string {
	var b strings.Builder
	begun := false
	for i, p := range points {
		if math.IsNaN(p.Value) {
			begun = false
			continue
		}
		letter := 'L'
		if !begun {
			letter = 'M'
		}
		fmt.Fprintf(&b, "%c%.1f %.1f", letter, units*share(p.At, from, to), height-bottom-(height-top-bottom)*p.Value/ceiling)
		if !begun && (i+1 == len(points) || math.IsNaN(points[i+1].Value)) {
			b.WriteString("h4")
		}
		begun = true
	}
	return b.String()
}

// writeTimes writes the axis of the time at a height.
func writeTimes(b *strings.Builder, from, to time.Time, y float64) {
	span := to.Sub(from).Round(time.Minute)
	fmt.Fprintf(b, `<text class="axis" x="0" y="%g">%s ago</text><text class="axis" x="50%%" y="%g" text-anchor="middle">%s ago</text><text class="axis" x="100%%" y="%g" text-anchor="end">now</text>`,
		y, minutes(span), y, minutes(span/2), y)
}

// minutes returns a time in hours or minutes.
func minutes(d time.Duration) string {
	if d >= 2*time.Hour {
		return fmt.Sprintf("%.3g h", d.Hours())
	}
	return fmt.Sprintf("%.3g min", d.Minutes())
}

// Span is a time in which something was so.
type Span struct {
	From, To time.Time
	Label    string
}

// Strip returns spans as bars in a row, and marks as shapes below them.
func Strip(title string, from, to time.Time, spans []Span, marks []Mark) template.HTML {
	const high, row = 74.0, 22.0
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="chart strip" height="%g" role="img" aria-label="%s"><svg class="plot">`, high, template.HTMLEscapeString(title))
	for i, s := range spans {
		start, end := share(s.From, from, to), share(s.To, from, to)
		text := template.HTMLEscapeString(s.Label)
		// The inner svg cuts a label that does not fit.
		fmt.Fprintf(&b, `<svg x="%s" y="4" width="%s" height="%g"><title>%s</title><rect class="span span-%d" width="100%%" height="100%%" rx="3"/><text class="span-label" x="6" y="15">%s</text></svg>`,
			percent(start), percent(max(end-start, .001)), row, text, i%2, text)
	}
	for _, m := range marks {
		fmt.Fprintf(&b, `<svg x="%s" overflow="visible"><path class="mark-shape happening-%s" d="M0 32%s"><title>%s</title></path></svg>`,
			percent(share(m.At, from, to)), template.HTMLEscapeString(m.Kind), outline(m.Kind), template.HTMLEscapeString(m.Label))
	}
	b.WriteString(`<line class="grid" x1="0" y1="46" x2="100%" y2="46"/>`)
	writeTimes(&b, from, to, high-8)
	b.WriteString("</svg></svg>")
	return template.HTML(b.String()) //nolint:gosec // only numbers, and texts, which are escaped
}

// Spark returns values in order of time as a small line without an axis. A title describes it.
func Spark(title string, values []float64) template.HTML {
	const high = 24.0
	highest := 1.0
	for _, v := range values {
		highest = max(highest, v)
	}
	var d strings.Builder
	for i, v := range values {
		letter := 'L'
		if i == 0 {
			letter = 'M'
		}
		fmt.Fprintf(&d, "%c%.1f %.1f", letter, units*float64(i)/float64(max(len(values)-1, 1)), high-2-(high-4)*v/highest)
	}
	return template.HTML(fmt.Sprintf(`<svg class="spark" viewBox="0 0 %g %g" preserveAspectRatio="none" role="img" aria-label="%s"><title>%s</title><path class="line line-1" d="%s"/></svg>`, //nolint:gosec // escaped
		units, high, template.HTMLEscapeString(title), template.HTMLEscapeString(title), d.String()))
}

// outline returns the outline of the shape of a mark, from its top on.
func outline(kind string) string {
	if kind == "deploy" {
		return "l5 5l-5 5l-5-5z"
	}
	return "l5 9h-10z"
}

// Shape returns the shape of marks of a kind.
func Shape(kind string) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg class="happening-%s" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true"><path d="M6 1%s"/></svg>`, template.HTMLEscapeString(kind), outline(kind))) //nolint:gosec // escaped
}

// Bar returns a bar of a share, 0 to 1, of its width.
func Bar(share float64) template.HTML {
	share = min(max(share, 0), 1)
	return template.HTML(fmt.Sprintf(`<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="8" rx="2"/><rect class="fill" width="%.1f" height="8" rx="2"/></svg>`, 100*share))
}

// ceil returns the next of 1, 2, 4 and 10 times a power of ten, at least 1.
func ceil(v float64) float64 {
	if v <= 1 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 4, 10} {
		if v <= step*power {
			return step * power
		}
	}
	return 10 * power
}

// short returns a number with at most three digits and the letter of its thousands.
func short(v float64) string {
	for _, unit := range []struct {
		size   float64
		letter string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= unit.size {
			return fmt.Sprintf("%.3g%s", v/unit.size, unit.letter)
		}
	}
	return fmt.Sprintf("%.3g", v)
}
