package pages

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
	"github.com/yardmaster-dev/yardmaster/web/console/draw"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

// ranges are the windows that the overview can show.
var ranges = []string{"15m", "1h", "6h", "24h"}

// Limits of what the overview shows.
const (
	shownQueues   = 8
	shownFailures = 8
	shownTimeline = 12
	shownEvents   = 12
)

// overviewData is the data of the first page.
type overviewData struct {
	api.Overview
	Ranges  []string
	Range   string
	Chart   overviewCharts
	Queues  []backlog // with jobs that wait, the longest first
	More    int       // further ones
	Paused  []string  // queues
	Changes []Happening
	Events  []history.Line
	Problem error // why there are no Events
}

// overviewCharts are the charts of the first page.
type overviewCharts struct {
	Rates, Wait, Run *draw.Chart
	Authority        []draw.Span
	Marks            []draw.Mark
	From, To         time.Time
}

// backlog is a queue with jobs that wait.
type backlog struct {
	Name    string
	Waiting int
	Oldest  *api.OldestJob
	Share   float64 // of the longest, 0 to 1
}

// Overview loads the page: what happened in the yard lately, and how it is now.
func Overview(ctx context.Context, e *Env, v *View) (any, error) {
	o := &overviewData{Ranges: ranges, Range: cmp.Or(v.Query.Get("range"), "1h")}
	var err error
	if o.Overview, err = ask[api.Overview](ctx, e, v, "overview", &api.OverviewRequest{Window: o.Range}); err != nil {
		return nil, err
	}
	longest := 1
	for i := range o.Overview.Queues {
		q := &o.Overview.Queues[i]
		if q.State == "paused" {
			o.Paused = append(o.Paused, q.Name)
		}
		if n := q.Backlog["waiting"]; n > 0 {
			o.Queues = append(o.Queues, backlog{Name: q.Name, Waiting: n, Oldest: q.Oldest})
			longest = max(longest, n)
		}
	}
	slices.SortFunc(o.Queues, func(a, b backlog) int { return cmp.Or(b.Waiting-a.Waiting, cmp.Compare(a.Name, b.Name)) })
	if len(o.Queues) > shownQueues {
		o.Queues, o.More = o.Queues[:shownQueues], len(o.Queues)-shownQueues
	}
	for i := range o.Queues {
		o.Queues[i].Share = float64(o.Queues[i].Waiting) / float64(longest)
	}
	for _, f := range o.Failures[min(len(o.Failures), shownFailures):] {
		o.Others += f.Count
	}
	o.Failures = o.Failures[:min(len(o.Failures), shownFailures)]
	happenings := happeningsOf(o.Timeline)
	o.Changes = happenings[:min(len(happenings), shownTimeline)]
	o.Chart = chartsOf(&o.Overview, happenings)
	o.Events, _, o.Problem = e.Tail.Recent(ctx, &history.Filter{}, shownEvents)
	return o, nil
}

// FailureShare returns the share of failures, 0 to 1, of the most frequent type.
func (o *overviewData) FailureShare(n uint64) float64 {
	return float64(n) / float64(o.Failures[0].Count)
}

// chartsOf returns the charts of an overview, with what happened.
func chartsOf(o *api.Overview, happenings []Happening) overviewCharts {
	p := &o.Points
	step := time.Duration(p.Step) * time.Millisecond
	at := func(i int) time.Time { return p.Start.Add(time.Duration(i)*step + step/2) }
	rate := func(name string, lists ...[]*uint64) draw.Series {
		s := draw.Series{Name: name}
		for i := range lists[0] {
			value := 0.0
			for _, list := range lists {
				if list[i] == nil {
					value = math.NaN()
					break
				}
				value += float64(*list[i]) / step.Seconds()
			}
			s.Points = append(s.Points, draw.Point{At: at(i), Value: value})
		}
		return s
	}
	times := func(name string, list []*float64) draw.Series {
		s := draw.Series{Name: name}
		for i, ms := range list {
			value := math.NaN()
			if ms != nil {
				value = *ms
			}
			s.Points = append(s.Points, draw.Point{At: at(i), Value: value})
		}
		return s
	}
	c := overviewCharts{From: o.At.Add(-time.Duration(o.Window) * time.Millisecond), To: o.At}
	c.Authority, c.Marks = authorityOf(o, c.From), marksOf(happenings, c.From)
	chart := func(title string, label func(float64) string, series ...draw.Series) *draw.Chart {
		return &draw.Chart{Title: title, From: c.From, To: c.To, Series: series, Marks: c.Marks, Label: label}
	}
	label := func(ms float64) string { return format.Duration(time.Duration(ms * float64(time.Millisecond))) }
	c.Rates = chart("Jobs accepted, started and ended per second", nil,
		rate("accepted", p.Accepted), rate("started", p.Started), rate("ended", p.Completed, p.Failed, p.Cancelled, p.Expired))
	c.Wait = chart("How long jobs waited", label, times("p50", p.WaitP50), times("p99", p.WaitP99))
	c.Run = chart("How long attempts ran", label, times("p50", p.RunP50), times("p99", p.RunP99))
	return c
}

// authorityAcquired is the action of a change of the authority.
const authorityAcquired = "authority.acquired"

// authorityOf returns which members have held the authority, since from.
func authorityOf(o *api.Overview, from time.Time) (spans []draw.Span) {
	until := o.At
	for _, h := range o.Timeline { // newest first
		if h.Action != authorityAcquired || until.Before(from) {
			continue
		}
		if n := len(spans); n > 0 && spans[n-1].Label == format.Plain(h.Target, format.CutName) {
			spans[n-1].From = h.At
		} else {
			spans = append(spans, draw.Span{From: h.At, To: until, Label: format.Plain(h.Target, format.CutName)})
		}
		until = h.At
	}
	if len(spans) == 0 && o.Authority.Owner != "" { // it has had it for longer than the timeline
		spans = append(spans, draw.Span{From: from, To: until, Label: format.Plain(o.Authority.Owner, format.CutName)})
	}
	slices.Reverse(spans)
	return spans
}
