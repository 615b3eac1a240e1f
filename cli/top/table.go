package top

import (
	"fmt"
	"math"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"

	"github.com/charmbracelet/x/ansi"
)

// Widths of the table's columns.
const (
	maxNameWidth = 32
	minNameWidth = 12
	cellWidth    = 9
)

// pad returns text that takes width cells of the terminal: cut, or with spaces behind it.
func pad(text string, width int) string {
	text = ansi.Truncate(text, width, "…")
	return text + strings.Repeat(" ", max(0, width-ansi.StringWidth(text)))
}

// padLeft is like pad, with spaces before the text.
func padLeft(text string, width int) string {
	text = ansi.Truncate(text, width, "…")
	return strings.Repeat(" ", max(0, width-ansi.StringWidth(text))) + text
}

// table returns the table of queues in at most a number of lines.
func (s *state) table(height int) []string {
	rows, cursor := s.rows(), s.selectedRow()
	if len(rows) == 0 {
		return []string{"no queues"}
	}
	visible := max(1, height-1)
	if s.overview.MoreQueues > 0 {
		visible = max(1, visible-1)
	}
	s.top = max(0, min(s.top, cursor, len(rows)-visible))
	if cursor >= s.top+visible {
		s.top = cursor - visible + 1
	}
	shown := shownColumns(s.width, s.sort)
	name := min(maxNameWidth, max(minNameWidth, s.width-cellWidth*(len(shown)-1)))
	lines := []string{s.titles(shown, name)}
	for i, q := range rows[s.top:min(len(rows), s.top+visible)] {
		lines = append(lines, s.row(q, shown, name, !s.plain && s.top+i == cursor))
	}
	if more := s.overview.MoreQueues; more > 0 {
		lines = append(lines, s.paint(dim, fmt.Sprintf("and %d further queues", more)))
	}
	return lines
}

// titles returns the first line of the table, with a mark at the column by which it is sorted.
func (s *state) titles(shown []int, name int) string {
	var b strings.Builder
	for _, i := range shown {
		title := columns[i].title
		if i == s.sort && !s.plain {
			mark := "▼"
			if s.reversed {
				mark = "▲"
			}
			title = mark + title
		}
		if i == 0 {
			b.WriteString(pad(title, name))
		} else {
			b.WriteString(padLeft(title, cellWidth))
		}
	}
	return s.paint(bold, b.String())
}

// row returns a queue's line.
func (s *state) row(q *api.OverviewQueue, shown []int, name int, selected bool) string {
	label := command.Shorten(command.OneLine(q.Name), name)
	if q.State == "paused" {
		const paused = " (paused)"
		label = command.Shorten(label, max(0, name-len(paused))) + paused
	}
	line := pad(label, name)
	for _, i := range shown[1:] {
		line += padLeft(columns[i].text(q), cellWidth)
	}
	if selected {
		return s.paint(reverse, line)
	}
	return line
}

// bars are the heights of a chart.
var bars = []rune("▁▂▃▄▅▆▇█")

// charts returns lines with the numbers of the points.
func (s *state) charts(o *api.Overview) (lines []string) {
	p := &o.Points
	failed := make([]*uint64, len(p.Failed))
	for i := range failed {
		if p.Failed[i] != nil && p.Retried[i] != nil {
			failed[i] = new(*p.Failed[i] + *p.Retried[i])
		}
	}
	for _, c := range []struct {
		title  string
		points []*uint64
		style  style
	}{{"accepted", p.Accepted, cyan}, {"completed", p.Completed, green}, {"failures", failed, red}} {
		lines = append(lines, s.chart(c.title, rates(c.points, p.Step), c.style))
	}
	return lines
}

// rates returns numbers of points as rates, NaN where they are not known.
func rates(points []*uint64, stepMS int64) []float64 {
	values := make([]float64, len(points))
	for i, n := range points {
		if values[i] = math.NaN(); n != nil {
			values[i] = float64(*n) * 1000 / float64(stepMS)
		}
	}
	return values
}

// chart returns a line with a bar for each of some points, and the highest rate.
func (s *state) chart(title string, values []float64, st style) string {
	const titleWidth, maxWidth = 10, 14
	values = fitPoints(values, max(8, s.width-titleWidth-maxWidth))
	most := 0.0
	for _, v := range values {
		if v > most {
			most = v
		}
	}
	var b strings.Builder
	for _, v := range values {
		switch {
		case math.IsNaN(v):
			b.WriteRune('·')
		case v == 0:
			b.WriteRune(' ')
		default:
			b.WriteRune(bars[min(len(bars)-1, int(v/most*float64(len(bars))))])
		}
	}
	return pad(title, titleWidth) + s.paint(st, b.String()) + s.paint(dim, " ≤ "+rateText(most)+"/s")
}

// fitPoints returns at most n values: the mean of each of n parts, NaN where nothing is known.
func fitPoints(values []float64, n int) []float64 {
	if len(values) <= n {
		return values
	}
	fitted := make([]float64, n)
	for i := range fitted {
		sum, known := 0.0, 0
		for _, v := range values[i*len(values)/n : (i+1)*len(values)/n] {
			if !math.IsNaN(v) {
				sum, known = sum+v, known+1
			}
		}
		fitted[i] = sum / float64(known) // NaN for none
	}
	return fitted
}

// queueLines returns why the jobs of the queue run or do not, and those that run.
func (s *state) queueLines(o *api.Overview) []string {
	e := s.explanation
	if e == nil {
		return []string{"waiting for an answer about the queue"}
	}
	lines := []string{s.paint(bold, e.Verdict)}
	for i := range e.Reasons {
		lines = append(lines, s.paint(yellow, "- "+e.Reasons[i].Text))
	}
	if e.Oldest != nil {
		lines = append(lines, fmt.Sprintf("oldest waiting job %s, for %s", e.Oldest.ID, timeText(float64(e.Oldest.AgeMS))))
	}
	if len(e.Active) == 0 {
		return append(lines, "", "no job runs")
	}
	lines = append(lines, "", s.paint(bold, pad("JOB", 38)+pad("SINCE", 9)+pad("ATTEMPT", 9)+pad("NODE", 12)+"WORKER"))
	for i := range e.Active {
		j := &e.Active[i]
		state := ""
		if j.Stopping {
			state = "  (stopping)"
		}
		since := timeText(float64(max(0, o.At.Sub(j.Since).Milliseconds())))
		lines = append(lines, pad(j.ID.String(), 38)+pad(since, 9)+pad(fmt.Sprint(j.Attempt), 9)+pad(command.OneLine(j.Node), 12)+command.OneLine(j.Channel)+state)
	}
	if e.MoreActive > 0 {
		lines = append(lines, s.paint(dim, fmt.Sprintf("and %d further jobs", e.MoreActive)))
	}
	return lines
}
