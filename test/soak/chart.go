package soak

import (
	"bufio"
	"fmt"
	"html"
	"io"
	"math"
	"time"
)

// The geometry of the picture, in pixels.
const (
	chartColumns = 3
	panelWidth   = 380
	panelHeight  = 150
	marginLeft   = 58
	marginRight  = 12
	marginTop    = 36
	marginBottom = 22
	titleHeight  = 44
	legendStep   = 64
)

// chartStyle makes the picture readable on light and dark backgrounds.
const chartStyle = `
  svg { background: #ffffff; color: #1f2328; font: 11px system-ui, sans-serif; }
  text { fill: currentColor; } .faint { opacity: 0.65; } .title { font-size: 15px; font-weight: 600; } .panel { font-size: 12px; font-weight: 600; }
  .axis { stroke: currentColor; opacity: 0.35; } .grid { stroke: currentColor; opacity: 0.12; }
  .line { fill: none; stroke-width: 1.5; stroke-linejoin: round; } .kill { stroke: #b35900; opacity: 0.45; stroke-dasharray: 2 3; }
  .bound { stroke: currentColor; opacity: 0.6; stroke-dasharray: 6 3; } .warm { fill: currentColor; opacity: 0.06; }
  .s0 { stroke: #0969da; fill: none; } .s1 { stroke: #bf5b04; fill: none; } .s2 { stroke: #1a7f37; fill: none; }
  text.s0 { fill: #0969da; stroke: none; } text.s1 { fill: #bf5b04; stroke: none; } text.s2 { fill: #1a7f37; stroke: none; }
  @media (prefers-color-scheme: dark) {
    svg { background: #0d1117; color: #e6edf3; }
    .s0 { stroke: #58a6ff; } .s1 { stroke: #f0a35e; } .s2 { stroke: #56d364; }
    text.s0 { fill: #58a6ff; } text.s1 { fill: #f0a35e; } text.s2 { fill: #56d364; }
  }
`

// writeSVG writes small charts of all series, one per panel, as one picture.
func writeSVG(w io.Writer, r *recorder, title string) error {
	out := bufio.NewWriter(w)
	panels := r.panels()
	rows := (len(panels) + chartColumns - 1) / chartColumns
	width, height := chartColumns*panelWidth, titleHeight+rows*panelHeight+8
	fmt.Fprintf(out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img"><title>%s</title><style>%s</style>`+"\n",
		width, height, width, height, html.EscapeString(title), chartStyle)
	fmt.Fprintf(out, `<text class="title" x="12" y="20">%s</text>`+"\n", html.EscapeString(title))
	fmt.Fprintln(out, `<text class="faint" x="12" y="36">Minutes on the x axis. Dotted: a node was killed. Dashed: the bound. Shaded: warm-up, not judged.</text>`)
	for i, name := range panels {
		p := &panel{out: out, x: i % chartColumns * panelWidth, y: titleHeight + i/chartColumns*panelHeight, recorder: r, series: r.of(name)}
		p.draw(name)
	}
	fmt.Fprintln(out, "</svg>")
	return out.Flush()
}

// panel is one small chart.
type panel struct {
	out      io.Writer
	x, y     int // of its upper left corner
	recorder *recorder
	series   []*Series
	top      float64 // value at the upper end of the axis
}

// draw draws the chart.
func (p *panel) draw(name string) {
	largest := 0.0
	for _, s := range p.series {
		for _, v := range s.Values {
			if !math.IsNaN(v) {
				largest = max(largest, v)
			}
		}
	}
	bound := p.series[0].Bound
	showBound := bound > 0 && largest > bound/4 // else the line would be flat at the bottom
	if showBound {
		largest = max(largest, bound)
	}
	p.top = niceTop(largest)
	left, right, bottom := p.x+marginLeft, p.x+panelWidth-marginRight, p.y+panelHeight-marginBottom
	fmt.Fprintf(p.out, `<text class="panel" x="%d" y="%d">%s</text>`+"\n", p.x+12, p.y+16, html.EscapeString(name))
	fmt.Fprintf(p.out, `<rect class="warm" x="%d" y="%d" width="%.1f" height="%d"/>`+"\n", left, p.y+marginTop, p.at(p.end()/3)-float64(left), bottom-p.y-marginTop)
	for i := range 3 {
		v := p.top * float64(i) / 2
		fmt.Fprintf(p.out, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/><text class="faint" text-anchor="end" x="%d" y="%.1f">%s</text>`+"\n",
			left, right, p.height(v), p.height(v), left-5, p.height(v)+4, p.series[0].text(v))
	}
	for _, kill := range p.recorder.kills {
		fmt.Fprintf(p.out, `<line class="kill" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`, p.at(kill), p.at(kill), p.y+marginTop, bottom)
	}
	if showBound {
		fmt.Fprintf(p.out, `<line class="bound" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`+"\n", left, right, p.height(bound), p.height(bound))
	}
	fmt.Fprintf(p.out, `<line class="axis" x1="%d" x2="%d" y1="%d" y2="%d"/>`+"\n", left, right, bottom, bottom)
	for i := range 4 {
		at := p.end() * time.Duration(i) / 3
		fmt.Fprintf(p.out, `<text class="faint" text-anchor="middle" x="%.1f" y="%d">%s</text>`, p.at(at), bottom+14, format(math.Round(at.Minutes()*10)/10, ""))
	}
	for i, s := range p.series {
		if len(p.series) > 1 {
			fmt.Fprintf(p.out, `<text class="s%d" text-anchor="end" x="%d" y="%d">%s</text>`+"\n", i%3, right-legendStep*(len(p.series)-1-i), p.y+16, html.EscapeString(s.label()))
		}
		fmt.Fprintf(p.out, `<path class="line s%d" d="%s"/>`+"\n", i%3, p.path(s))
	}
}

// end returns the end of the x axis.
func (p *panel) end() time.Duration {
	if len(p.recorder.times) == 0 {
		return time.Minute
	}
	return p.recorder.times[len(p.recorder.times)-1]
}

// at returns the x coordinate of a time.
func (p *panel) at(t time.Duration) float64 {
	return float64(p.x+marginLeft) + float64(panelWidth-marginLeft-marginRight)*float64(t)/float64(p.end())
}

// height returns the y coordinate of a value.
func (p *panel) height(v float64) float64 {
	return float64(p.y+panelHeight-marginBottom) - float64(panelHeight-marginTop-marginBottom)*v/p.top
}

// path returns the line of a series, with gaps where samples are missing.
func (p *panel) path(s *Series) string {
	var b []byte
	move := "M"
	for i, v := range s.Values {
		if math.IsNaN(v) {
			move = "M"
			continue
		}
		b = fmt.Appendf(b, "%s%.1f %.1f", move, p.at(p.recorder.times[i]), p.height(max(v, 0)))
		move = "L"
	}
	return string(b)
}

// niceTop returns 1, 2, 4 or 6 times a power of ten that is at least v, and at least 1.
func niceTop(v float64) float64 {
	if v <= 1 {
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
