// Package chart draws small line charts as one SVG picture, which is readable on light and
// dark backgrounds.
package chart

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
)

// Picture is a set of charts.
type Picture struct {
	Title, Note   string
	Columns       int
	Width, Height int // of a panel, in pixels
	Panels        []Panel
}

// Panel is one chart. Positions on its x axis are shares of its width, from 0 to 1.
type Panel struct {
	Title  string
	XTitle string // below the x axis
	XTicks []Tick
	Text   func(float64) string // formats values of the y axis
	MinTop float64              // least value at the upper end of the y axis
	Bound  float64              // drawn as a dashed line unless all values are far below it; 0: none
	Shaded float64              // share of the x axis that is shaded, from its begin
	Marks  []float64            // positions of vertical dotted lines
	Dots   bool                 // marks each point
	Lines  []Line
}

// Tick is a label of the x axis.
type Tick struct {
	At   float64
	Text string
}

// Line is a line of a panel.
type Line struct {
	Name   string // shown if the panel has several lines
	Points []Point
}

// Point is a point of a line. If Y is NaN, the line has a gap.
type Point struct{ X, Y float64 }

// The geometry of the picture, in pixels.
const (
	marginLeft   = 58
	marginRight  = 20
	marginTop    = 36
	marginBottom = 22
	xTitleHeight = 16
	titleHeight  = 44
	legendStep   = 64
	styles       = 3 // of lines
)

// style makes the picture readable on light and dark backgrounds.
const style = `
  svg { background: #ffffff; color: #1f2328; font: 11px system-ui, sans-serif; }
  text { fill: currentColor; } .faint { opacity: 0.65; } .title { font-size: 15px; font-weight: 600; } .panel { font-size: 12px; font-weight: 600; }
  .axis { stroke: currentColor; opacity: 0.35; } .grid { stroke: currentColor; opacity: 0.12; }
  .line { fill: none; stroke-width: 1.5; stroke-linejoin: round; } .mark { stroke: #b35900; opacity: 0.45; stroke-dasharray: 2 3; }
  .bound { stroke: currentColor; opacity: 0.6; stroke-dasharray: 6 3; } .shaded { fill: currentColor; opacity: 0.06; }
  .s0 { stroke: #0969da; fill: none; } .s1 { stroke: #bf5b04; fill: none; } .s2 { stroke: #1a7f37; fill: none; }
  text.s0, circle.s0 { fill: #0969da; stroke: none; } text.s1, circle.s1 { fill: #bf5b04; stroke: none; } text.s2, circle.s2 { fill: #1a7f37; stroke: none; }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117; color: #e6edf3; }
    .s0 { stroke: #58a6ff; } .s1 { stroke: #f0a35e; } .s2 { stroke: #56d364; }
    text.s0, circle.s0 { fill: #58a6ff; } text.s1, circle.s1 { fill: #f0a35e; } text.s2, circle.s2 { fill: #56d364; }
  }
`

// WriteSVG writes the picture.
func (p *Picture) WriteSVG(w io.Writer) error {
	out := bufio.NewWriter(w)
	rows := (len(p.Panels) + p.Columns - 1) / p.Columns
	width, height := p.Columns*p.Width, titleHeight+rows*p.Height+8
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img"><title>%s</title><style>%s</style>`+"\n",
		width, height, width, height, html.EscapeString(p.Title), style)
	fmt.Fprintf(out, `<text class="title" x="12" y="20">%s</text>`+"\n", html.EscapeString(p.Title))
	fmt.Fprintf(out, `<text class="faint" x="12" y="36">%s</text>`+"\n", html.EscapeString(p.Note))
	for i := range p.Panels {
		d := drawing{out: out, Panel: &p.Panels[i]}
		d.left, d.right = i%p.Columns*p.Width+marginLeft, (i%p.Columns+1)*p.Width-marginRight
		d.y = titleHeight + i/p.Columns*p.Height
		d.bottom = d.y + p.Height - marginBottom
		if d.XTitle != "" {
			d.bottom -= xTitleHeight
		}
		d.draw()
	}
	fmt.Fprintln(out, "</svg>")
	return out.Flush()
}

// drawing is a panel with its place in the picture, in pixels.
type drawing struct {
	*Panel
	out         io.Writer
	left, right int // of the x axis
	y, bottom   int // upper end of the panel, and the height of the x axis
	top         float64
}

// draw draws the chart.
func (d *drawing) draw() {
	bound := d.chooseTop()
	fmt.Fprintf(d.out, `<text class="panel" x="%d" y="%d">%s</text>`+"\n", d.left-marginLeft+12, d.y+16, html.EscapeString(d.Title))
	if d.Shaded > 0 {
		fmt.Fprintf(d.out, `<rect class="shaded" x="%d" y="%d" width="%.1f" height="%d"/>`+"\n", d.left, d.y+marginTop, d.at(d.Shaded)-float64(d.left), d.bottom-d.y-marginTop)
	}
	for i := range 3 {
		v := d.top * float64(i) / 2
		fmt.Fprintf(d.out, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text class="faint" text-anchor="end" x="%d" y="%.1f">%s</text>`+"\n",
			d.left, d.right, d.height(v), d.height(v), d.left-5, d.height(v)+4, html.EscapeString(d.Text(v)))
	}
	for _, mark := range d.Marks {
		fmt.Fprintf(d.out, `<line class="mark" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, d.at(mark), d.at(mark), d.y+marginTop, d.bottom)
	}
	if bound {
		fmt.Fprintf(d.out, `<line class="bound" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`+"\n", d.left, d.right, d.height(d.Bound), d.height(d.Bound))
	}
	fmt.Fprintf(d.out, `<line class="axis" x1="%d" x2="%d" y1="%d" y2="%d"/>`+"\n", d.left, d.right, d.bottom, d.bottom)
	for _, tick := range d.XTicks {
		fmt.Fprintf(d.out, `<text class="faint" text-anchor="middle" x="%.1f" y="%d">%s</text>`, d.at(tick.At), d.bottom+14, html.EscapeString(tick.Text))
	}
	if d.XTitle != "" {
		fmt.Fprintf(d.out, `<text class="faint" text-anchor="middle" x="%d" y="%d">%s</text>`+"\n", (d.left+d.right)/2, d.bottom+14+xTitleHeight, html.EscapeString(d.XTitle))
	}
	for i := range d.Lines {
		d.drawLine(i)
	}
}

// chooseTop sets the value at the upper end of the y axis, and reports whether it is high
// enough to show the bound: else all lines would be flat.
func (d *drawing) chooseTop() (bound bool) {
	largest := 0.0
	for _, l := range d.Lines {
		for _, p := range l.Points {
			if !math.IsNaN(p.Y) {
				largest = max(largest, p.Y)
			}
		}
	}
	if bound = d.Bound > 0 && largest > d.Bound/4; bound {
		largest = max(largest, d.Bound)
	}
	d.top = niceTop(max(largest, d.MinTop))
	return bound
}

// drawLine draws a line, and its name if there are several.
func (d *drawing) drawLine(i int) {
	l := &d.Lines[i]
	if len(d.Lines) > 1 {
		fmt.Fprintf(d.out, `<text class="s%d" text-anchor="end" x="%d" y="%d">%s</text>`+"\n", i%styles, d.right-legendStep*(len(d.Lines)-1-i), d.y+16, html.EscapeString(l.Name))
	}
	fmt.Fprintf(d.out, `<path class="line s%d" d="%s"/>`+"\n", i%styles, d.path(l.Points))
	for _, p := range l.Points {
		if d.Dots && !math.IsNaN(p.Y) {
			fmt.Fprintf(d.out, `<circle class="s%d" cx="%.1f" cy="%.1f" r="2.5"/>`, i%styles, d.at(p.X), d.height(max(p.Y, 0)))
		}
	}
}

// at returns the x coordinate of a position.
func (d *drawing) at(x float64) float64 { return float64(d.left) + float64(d.right-d.left)*x }

// height returns the y coordinate of a value.
func (d *drawing) height(v float64) float64 {
	return float64(d.bottom) - float64(d.bottom-d.y-marginTop)*v/d.top
}

// path returns a line through points, with gaps where values are missing.
func (d *drawing) path(points []Point) string {
	var b []byte
	move := "M"
	for _, p := range points {
		if math.IsNaN(p.Y) {
			move = "M"
			continue
		}
		b = fmt.Appendf(b, "%s%.1f %.1f", move, d.at(p.X), d.height(max(p.Y, 0)))
		move = "L"
	}
	return string(b)
}

// niceTop returns a number with one or two digits, times a power of ten, that is at least v;
// 1 if v is 0.
func niceTop(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 1.2, 1.6, 2, 3, 4, 6, 8, 10} {
		if v <= step*power {
			return step * power
		}
	}
	return 10 * power
}
