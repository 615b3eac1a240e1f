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

// Size of a chart in its own units, and the space around the lines.
const (
	width, height = 640.0, 180.0
	left, right   = 52.0, 8.0
	top, bottom   = 10.0, 22.0
)

// x returns where a time is between two.
func x(at, from, to time.Time) float64 {
	share := float64(at.Sub(from)) / float64(max(to.Sub(from), 1))
	return left + (width-left-right)*min(max(share, 0), 1)
}

// Lines returns a chart as lines that differ in colour and in how they are dashed.
func Lines(c *Chart) template.HTML {
	label := c.Label
	if label == nil {
		label = short
	}
	highest := 0.0
	for _, s := range c.Series {
		for _, p := range s.Points {
			if p.Value > highest { // not if it is not known
				highest = p.Value
			}
		}
	}
	ceiling := ceil(highest)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="chart" viewBox="0 0 %g %g" role="img" aria-label="%s">`, width, height, template.HTMLEscapeString(c.Title))
	for i := range 3 {
		value := ceiling * float64(i) / 2
		y := height - bottom - (height-top-bottom)*float64(i)/2
		fmt.Fprintf(&b, `<line class="grid" x1="%g" y1="%.1f" x2="%g" y2="%.1f"/><text class="axis" x="%g" y="%.1f" text-anchor="end">%s</text>`,
			left, y, width-right, y, left-6, y+4, template.HTMLEscapeString(label(value)))
	}
	writeTimes(&b, c.From, c.To, height-5)
	for i := range c.Marks {
		at := x(c.Marks[i].At, c.From, c.To)
		fmt.Fprintf(&b, `<line class="mark-line happening-%s" x1="%.1f" y1="%g" x2="%.1f" y2="%g"><title>%s</title></line>`,
			template.HTMLEscapeString(c.Marks[i].Kind), at, top, at, height-bottom, template.HTMLEscapeString(c.Marks[i].Label))
	}
	for i, s := range c.Series {
		fmt.Fprintf(&b, `<path class="line line-%d" d="%s"/>`, i+1, linePath(s.Points, c.From, c.To, ceiling))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // only numbers, and texts, which are escaped
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
		fmt.Fprintf(&b, "%c%.1f %.1f", letter, x(p.At, from, to), height-bottom-(height-top-bottom)*p.Value/ceiling)
		if !begun && (i+1 == len(points) || math.IsNaN(points[i+1].Value)) {
			b.WriteString("h1")
		}
		begun = true
	}
	return b.String()
}

// writeTimes writes the axis of the time at a height.
func writeTimes(b *strings.Builder, from, to time.Time, y float64) {
	span := to.Sub(from).Round(time.Minute)
	fmt.Fprintf(b, `<text class="axis" x="%g" y="%g">%s ago</text><text class="axis" x="%g" y="%g" text-anchor="middle">%s ago</text><text class="axis" x="%g" y="%g" text-anchor="end">now</text>`,
		left, y, minutes(span), (left+width-right)/2, y, minutes(span/2), width-right, y)
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
	fmt.Fprintf(&b, `<svg class="chart strip" viewBox="0 0 %g %g" role="img" aria-label="%s">`, width, high, template.HTMLEscapeString(title))
	for i, s := range spans {
		start, end := x(s.From, from, to), x(s.To, from, to)
		text := template.HTMLEscapeString(s.Label)
		fmt.Fprintf(&b, `<g><title>%s</title><rect class="span span-%d" x="%.1f" y="4" width="%.1f" height="%g" rx="3"/>`, text, i%2, start, max(end-start-1, 1), row)
		if end-start > 8*float64(len(s.Label)) {
			fmt.Fprintf(&b, `<text class="span-label" x="%.1f" y="19">%s</text>`, start+6, text)
		}
		b.WriteString(`</g>`)
	}
	for _, m := range marks {
		at := x(m.At, from, to)
		fmt.Fprintf(&b, `<path class="mark-shape happening-%s" d="M%.1f 32%s"><title>%s</title></path>`, template.HTMLEscapeString(m.Kind), at, outline(m.Kind), template.HTMLEscapeString(m.Label))
	}
	fmt.Fprintf(&b, `<line class="grid" x1="%g" y1="46" x2="%g" y2="46"/>`, left, width-right)
	writeTimes(&b, from, to, high-8)
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // only numbers, and texts, which are escaped
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
