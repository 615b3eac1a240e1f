package top

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cli/command"
	"github.com/yardmaster-dev/yardmaster/internal/duration"

	"github.com/charmbracelet/x/ansi"
)

// style is the parameter of a control sequence that sets how text looks.
type style string

const (
	bold     style = "1"
	dim      style = "2"
	reverse  style = "7"
	red      style = "31"
	green    style = "32"
	yellow   style = "33"
	cyan     style = "36"
	unstyled style = ""
)

// paint returns text in a style, which has no control characters and is one line.
func (s *state) paint(st style, text string) string {
	text = command.OneLine(text)
	if s.plain || st == unstyled || text == "" {
		return text
	}
	return "\x1b[" + string(st) + "m" + text + "\x1b[m"
}

// frame returns the lines of the screen: at most as many as it has, none of them wider.
func (s *state) frame() []string {
	lines := s.lines()
	if s.help {
		lines = s.helpLines()
	}
	if s.height > 0 {
		lines = lines[:min(len(lines), max(0, s.height-1))]
		for len(lines) < s.height-1 {
			lines = append(lines, "")
		}
		lines = append(lines, s.paint(dim, s.keys()))
	}
	for i, line := range lines {
		lines[i] = ansi.Truncate(line, s.width, "…")
	}
	return lines
}

func (s *state) keys() string {
	switch {
	case s.help:
		return "any key: back   q: quit"
	case s.queue != "":
		return "esc: all queues   w: window   ?: help   q: quit"
	}
	return "↑↓: select   enter: queue   s: sort   r: reverse   w: window   ?: help   q: quit"
}

// helpLines returns the help.
func (s *state) helpLines() []string {
	lines := []string{s.paint(bold, "Keys"), ""}
	for _, key := range [][2]string{
		{"j k ↑ ↓", "select a queue; g, G the first, the last one"}, {"enter", "show the queue: why it stands still, and what it runs"}, {"esc", "back to all queues"},
		{"s S", "sort by the next or the previous column"}, {"r", "reverse the order"}, {"w", "window of totals and charts: 15m, 1h, 24h"}, {"?", "this help"}, {"q", "quit"},
	} {
		lines = append(lines, "  "+s.paint(cyan, pad(key[0], 9))+key[1])
	}
	lines = append(lines, "", s.paint(bold, "Numbers"), "")
	for _, text := range []string{
		"Rates are of the last minute. Waiting times are from when a job was due until its",
		"first attempt started, running times of all attempts, both of the window. In charts,",
		"'·' is not known, and each bar is the mean of its time. '?' is not counted by queue.",
	} {
		lines = append(lines, "  "+text)
	}
	return lines
}

// lines returns all that is shown.
func (s *state) lines() []string {
	if s.overview == nil {
		if s.err != nil {
			return []string{s.paint(red, "no answer: "+s.err.Error())}
		}
		return []string{"waiting for the first answer"}
	}
	o := s.overview
	lines := append(s.header(o), s.rates(o)...)
	lines = append(lines, s.charts(o)...)
	lines = append(lines, s.problems(o)...)
	lines = append(lines, "")
	if s.queue != "" {
		return append(lines, s.queueLines(o)...)
	}
	timeline := s.timeline(o)
	if s.height > 0 { // the table has what is left, and at least five lines
		left := s.height - 1 - len(lines)
		timeline = timeline[:max(0, min(len(timeline), left-min(len(s.rows())+1, max(left/2, 5))))]
		lines = append(lines, s.table(left-len(timeline))...)
	} else {
		lines = append(lines, s.table(len(s.rows())+1)...)
	}
	return append(lines, timeline...)
}

// header returns where the numbers are from, and whether the yard is ready.
func (s *state) header(o *api.Overview) []string {
	ready, st := "ready", green
	switch {
	case !o.Readiness.Ready:
		ready, st = "not ready", red
	case len(o.Readiness.Warnings) > 0:
		ready, st = "ready, with warnings", yellow
	}
	what := "all queues"
	if s.queue != "" {
		what = "queue " + s.queue
	}
	line := s.paint(bold, what) + "  " + s.paint(st, ready) + "  authority " + s.paint(bold, cmp.Or(o.Authority.Owner, "none"))
	for i := range o.Members {
		m := &o.Members[i]
		st := red
		if m.State == "up" {
			st = green
		} else if m.State == "draining" || m.State == "unknown" {
			st = yellow
		}
		line += "  " + command.OneLine(m.Name) + " " + s.paint(st, m.State)
	}
	line += s.paint(dim, "  "+s.window+"  at "+o.Node+" "+o.At.Local().Format(time.TimeOnly))
	lines := []string{line}
	switch behind := o.At.Sub(o.AsOf.At).Round(time.Second); {
	case s.err != nil:
		lines = append(lines, s.paint(red, "no answer, asking again: "+s.err.Error()))
	case !o.Certain && o.AsOf.Index == 0:
		lines = append(lines, s.paint(red, o.Node+" has no contact with a quorum, and knows nothing of the yard since it has started again"))
	case !o.Certain:
		lines = append(lines, s.paint(red, fmt.Sprintf("%s has no contact with a quorum: these are the numbers of %v ago", o.Node, duration.Format(behind))))
	}
	return lines
}

// rates returns the rates of the last minute, the times of the window and the backlog.
func (s *state) rates(o *api.Overview) []string {
	rate := func(name string, n uint64, st style) string {
		if n == 0 {
			st = dim
		}
		return name + " " + s.paint(st, rateText(float64(n)/60)+"/s")
	}
	m, t := &o.LastMinute, &o.Totals
	lines := []string{strings.Join([]string{
		rate("accepted", m.Accepted, bold), rate("started", m.Started, bold), rate("completed", m.Completed, green),
		rate("retried", m.Retried, yellow), rate("failed", m.Failed, red), rate("cancelled", m.Cancelled, yellow), rate("expired", m.Expired, yellow),
	}, "  ")}
	times := func(name string, t *api.OverviewTimes) string {
		return fmt.Sprintf("%s p50 %s p99 %s", name, s.paint(bold, quantileText(t.P50)), s.paint(bold, quantileText(t.P99)))
	}
	backlog := o.Backlog
	if s.queue != "" {
		backlog = nil
		for i := range o.Queues {
			if o.Queues[i].Name == s.queue {
				backlog = o.Queues[i].Backlog
			}
		}
	}
	count := func(state string) string { return s.paint(bold, numberText(float64(backlog[state]))) + " " + state }
	return append(lines, times("wait", &t.Wait)+"   "+times("run", &t.Run)+"   "+strings.Join([]string{count("waiting"), count("active"), count("delayed")}, ", "))
}

// problems returns failures by type, limits, and why the yard is not ready.
func (s *state) problems(o *api.Overview) (lines []string) {
	if len(o.Failures) > 0 || o.Others > 0 {
		var types []string
		for _, f := range o.Failures {
			types = append(types, command.OneLine(ansi.Truncate(cmp.Or(f.Type, "without a type"), 40, "…"))+" "+s.paint(bold, numberText(float64(f.Count))))
		}
		if o.Others > 0 {
			types = append(types, "others "+s.paint(bold, numberText(float64(o.Others))))
		}
		lines = append(lines, s.paint(red, "failures")+"  "+strings.Join(types, "  "))
	}
	if len(o.Limits) > 0 {
		var limits []string
		for i := range o.Limits {
			limits = append(limits, s.limitText(&o.Limits[i]))
		}
		lines = append(lines, s.paint(yellow, "limits")+"    "+strings.Join(limits, "  "))
	}
	for i, reason := range append(o.Readiness.Reasons, o.Readiness.Warnings...) {
		if i == 3 {
			break
		}
		lines = append(lines, s.paint(yellow, "- "+reason))
	}
	return lines
}

// limitText returns what keeps the jobs of a limit waiting.
func (s *state) limitText(l *api.Limit) string {
	why := "rate used"
	switch {
	case l.Paused:
		why = "paused"
	case l.Circuit != nil && l.Circuit.State == "open":
		why = "circuit open"
	case l.Total != nil && int64(l.Running) >= *l.Total:
		why = fmt.Sprintf("full, %d of %d", l.Running, *l.Total)
	}
	return fmt.Sprintf("%s %s, %s waiting", command.OneLine(l.Name), s.paint(bold, why), numberText(float64(l.Waiting)))
}

// timeline returns the last happenings.
func (s *state) timeline(o *api.Overview) []string {
	if len(o.Timeline) == 0 {
		return nil
	}
	lines := []string{"", s.paint(bold, "TIMELINE")}
	for i := range o.Timeline[:min(len(o.Timeline), 8)] {
		h := &o.Timeline[i]
		text := h.At.Local().Format(time.TimeOnly) + "  " + strings.Join(strings.Fields(command.OneLine(h.Action+" "+h.Queue+" "+h.Target)), " ")
		if h.Actor != "" {
			text += " by " + command.OneLine(h.Actor)
		}
		if h.Reason != "" {
			text += ": " + command.OneLine(h.Reason)
		}
		lines = append(lines, text)
	}
	return lines
}
