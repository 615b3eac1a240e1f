// Package draw draws charts as SVG, which needs no script and no style of its own: the
// page's style sheet has the colours of its classes.
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

// Point is a value at a time.
type Point struct {
	At    time.Time
	Value float64
}

// Size of a chart in its own units, and the space around the lines.
const (
	width, height = 640.0, 180.0
	left, right   = 44.0, 8.0
	top, bottom   = 10.0, 22.0
)

// Lines returns a chart of series over the same time, from 0 on. The lines differ in colour
// and in how they are dashed. Title describes the chart to those who do not see it.
func Lines(title string, series []Series) template.HTML {
	var from, to time.Time
	highest := 0.0
	for _, s := range series {
		for _, p := range s.Points {
			if from.IsZero() || p.At.Before(from) {
				from = p.At
			}
			if p.At.After(to) {
				to = p.At
			}
			highest = max(highest, p.Value)
		}
	}
	ceiling := ceil(highest)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="chart" viewBox="0 0 %g %g" role="img" aria-label="%s">`, width, height, template.HTMLEscapeString(title))
	for i := range 3 {
		value := ceiling * float64(i) / 2
		y := height - bottom - (height-top-bottom)*float64(i)/2
		fmt.Fprintf(&b, `<line class="grid" x1="%g" y1="%.1f" x2="%g" y2="%.1f"/><text class="axis" x="%g" y="%.1f" text-anchor="end">%s</text>`,
			left, y, width-right, y, left-6, y+4, short(value))
	}
	if span := to.Sub(from); span > 0 {
		fmt.Fprintf(&b, `<text class="axis" x="%g" y="%g">%s ago</text><text class="axis" x="%g" y="%g" text-anchor="end">now</text>`,
			left, height-5, span.Round(time.Second), width-right, height-5)
		for i, s := range series {
			fmt.Fprintf(&b, `<polyline class="line line-%d" points="`, i+1)
			for k, p := range s.Points {
				if k > 0 {
					b.WriteByte(' ')
				}
				x := left + (width-left-right)*float64(p.At.Sub(from))/float64(span)
				y := height - bottom - (height-top-bottom)*p.Value/ceiling
				fmt.Fprintf(&b, "%.1f,%.1f", x, y)
			}
			b.WriteString(`"/>`)
		}
	}
	b.WriteString("</svg>")
	return template.HTML(b.String()) //nolint:gosec // only numbers, and the title, which is escaped
}

// Bar returns a bar of a share, 0 to 1, of its width.
func Bar(share float64) template.HTML {
	share = min(max(share, 0), 1)
	return template.HTML(fmt.Sprintf(`<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="track" width="100" height="8" rx="2"/><rect class="fill" width="%.1f" height="8" rx="2"/></svg>`, 100*share))
}

// ceil returns the next of 1, 2, 4 and 10 times a power of ten, at least 4.
func ceil(v float64) float64 {
	if v <= 4 {
		return 4
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
