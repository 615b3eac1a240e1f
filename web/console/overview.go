package console

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

// pages returns all pages.
func pages() []*page {
	return []*page{
		{path: "{$}", name: "overview", nav: "", title: titled("Overview"), load: loadOverview},
		{path: "queues", name: "queues", nav: "queues", title: titled("Queues"), load: loadQueues},
		{path: "queues/{name}", name: "queue", nav: "queues", title: titled("Queue"), load: loadQueue},
		{path: "jobs", name: "jobs", nav: "jobs", title: titled("Jobs"), load: loadJobs},
		{path: "jobs/{name}", name: "job", nav: "jobs", title: titled("Job"), load: loadJob},
		{path: "workers", name: "workers", nav: "workers", title: titled("Workers"), load: loadWorkers},
		{path: "dead-letters", name: "letters", nav: "dead-letters", title: titled("Dead letters"), load: loadLetters},
		{path: "cron", name: "cron", nav: "cron", title: titled("Cron"), load: loadCron},
		{path: "limits", name: "limits", nav: "limits", title: titled("Limits"), load: loadLimits},
		{path: "limits/{name}", name: "limit", nav: "limits", title: titled("Limit"), load: loadLimit},
		{path: "members", name: "members", nav: "members", title: titled("Members"), load: loadMembers},
		{path: "events", name: "events", nav: "events", title: titled("Events"), load: loadEvents},
		{path: "settings", name: "settings", nav: "settings", title: titled("Settings"), load: loadSettings},
		{path: "sign-in", name: "sign-in", nav: "-", title: titled("Sign in"), load: func(context.Context, *Console, *view) (any, error) { return nil, nil }},
	}
}

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

func loadOverview(ctx context.Context, c *Console, v *view) (any, error) {
	list, err := ask[api.QueueList](ctx, c, v.user, "queue-list", nil)
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
	limits, err := ask[api.LimitList](ctx, c, v.user, "limit-list", nil)
	if err != nil {
		return nil, err
	}
	for _, l := range limits.Limits {
		if l.FullSince != nil || l.Paused || l.Circuit != nil && l.Circuit.State != "closed" {
			o.Full = append(o.Full, l)
		}
	}
	o.Events, _, o.Problem = c.tail.recent(ctx, &history.Filter{}, 12)
	o.Series = c.samples.add(time.Now(), o.Totals["waiting"]+o.Totals["delayed"], o.Totals["active"])
	return o, nil
}

// Limits of the samples.
const (
	sampleEvery = 2 * time.Second
	maxSamples  = 300
)

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
