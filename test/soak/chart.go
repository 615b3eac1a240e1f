package soak

import (
	"io"
	"math"
	"time"

	"github.com/yardmaster-dev/yardmaster/test/chart"
)

// writeSVG writes small charts of all series, one per panel, as one picture.
func writeSVG(w io.Writer, r *recorder, title string) error {
	p := chart.Picture{Title: title, Columns: 3, Width: 380, Height: 150,
		Note: "Minutes on the x axis. Dotted: a node was killed. Dashed: the bound. Shaded: warm-up, not judged."}
	for _, name := range r.panels() {
		p.Panels = append(p.Panels, r.chart(name))
	}
	return p.WriteSVG(w)
}

// chart returns the chart of the series of a panel.
func (r *recorder) chart(name string) chart.Panel {
	series := r.of(name)
	p := chart.Panel{Title: name, Text: series[0].text, MinTop: 1, Bound: series[0].Bound, Shaded: 1.0 / 3}
	for i := range 4 {
		minutes := (r.end() * time.Duration(i) / 3).Minutes()
		p.XTicks = append(p.XTicks, chart.Tick{At: float64(i) / 3, Text: format(math.Round(minutes*10)/10, "")})
	}
	for _, kill := range r.kills {
		p.Marks = append(p.Marks, r.share(kill))
	}
	for _, s := range series {
		line := chart.Line{Name: s.label()}
		for i, v := range s.Values {
			line.Points = append(line.Points, chart.Point{X: r.share(r.times[i]), Y: v})
		}
		p.Lines = append(p.Lines, line)
	}
	return p
}

// end returns the end of the x axis.
func (r *recorder) end() time.Duration {
	if len(r.times) == 0 {
		return time.Minute
	}
	return r.times[len(r.times)-1]
}

// share returns the position of a time on the x axis.
func (r *recorder) share(t time.Duration) float64 { return float64(t) / float64(r.end()) }
