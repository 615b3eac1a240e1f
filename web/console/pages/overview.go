package pages

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
	"github.com/yardmaster-dev/yardmaster/web/console/draw"
)

// overview is the data of the first page.
type overview struct {
	Totals  map[string]int // jobs by state
	Backlog []backlog      // queues with jobs that wait, the longest first
	More    int            // further ones
	Paused  []string       // queues
	Full    []api.Limit    // limits that start no job now
	Events  []history.Line
	Problem error // why there are no Events
	Series  []draw.Series
}

// backlog is a queue with jobs that wait.
type backlog struct {
	Queue   api.Queue
	Waiting int
	Share   float64 // of the longest, 0 to 1
}

// Overview loads the page.
func Overview(ctx context.Context, e *Env, v *View) (any, error) {
	list, err := ask[api.QueueList](ctx, e, v, "queue-list", nil)
	if err != nil {
		return nil, err
	}
	o := &overview{Totals: map[string]int{}}
	longest := 1
	for _, q := range list.Queues {
		for state, n := range q.Counts {
			o.Totals[state] += n
		}
		if q.State == "paused" {
			o.Paused = append(o.Paused, q.Name)
		}
		if n := q.Counts["waiting"]; n > 0 {
			o.Backlog = append(o.Backlog, backlog{Queue: q, Waiting: n})
			longest = max(longest, n)
		}
	}
	slices.SortFunc(o.Backlog, func(a, b backlog) int { return cmp.Or(b.Waiting-a.Waiting, cmp.Compare(a.Queue.Name, b.Queue.Name)) })
	if len(o.Backlog) > 8 {
		o.Backlog, o.More = o.Backlog[:8], len(o.Backlog)-8
	}
	for i := range o.Backlog {
		o.Backlog[i].Share = float64(o.Backlog[i].Waiting) / float64(longest)
	}
	limits, err := ask[api.LimitList](ctx, e, v, "limit-list", nil)
	if err != nil {
		return nil, err
	}
	for _, l := range limits.Limits {
		if l.FullSince != nil || l.Paused || l.Circuit != nil && l.Circuit.State != "closed" {
			o.Full = append(o.Full, l)
		}
	}
	o.Events, _, o.Problem = e.Tail.Recent(ctx, &history.Filter{}, 12)
	o.Series = overviewSamples.add(time.Now(), o.Totals["waiting"]+o.Totals["delayed"], o.Totals["active"])
	return o, nil
}

// Limits of the samples.
const (
	sampleEvery = 2 * time.Second
	maxSamples  = 300
)

// overviewSamples are those of the first page.
var overviewSamples samples

// samples keeps the numbers of jobs while the first page is shown.
type samples struct {
	mu              sync.Mutex
	last            time.Time
	waiting, active []draw.Point
}

// add adds a sample, unless the last one is younger than sampleEvery, and returns the series
// so far.
func (s *samples) add(now time.Time, waiting, active int) []draw.Series {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.last) >= sampleEvery {
		s.last = now
		s.waiting = appendSample(s.waiting, now, waiting)
		s.active = appendSample(s.active, now, active)
	}
	return []draw.Series{{Name: "waiting and delayed", Points: slices.Clone(s.waiting)}, {Name: "active", Points: slices.Clone(s.active)}}
}

// appendSample adds a sample to a series, and removes the first if there are too many.
func appendSample(points []draw.Point, now time.Time, n int) []draw.Point {
	points = append(points, draw.Point{At: now, Value: float64(n)})
	if len(points) > maxSamples {
		points = slices.Clone(points[1:])
	}
	return points
}
