package overview

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/series"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server"
)

// Overview answers requests. All fields are required.
type Overview struct {
	Node     string
	Recorder *Recorder
	View     func(func(*ledger.Ledger))                 // reads the local ledger
	Status   func(context.Context) (*api.Status, error) // returns the status of the node and the yard
	Quorum   func() bool                                // reports whether the node is in contact with a quorum

	mu    crash.Mutex
	cache map[api.OverviewRequest]*answer
}

// How long an answer is given to further callers. A window of more than an hour takes longer to
// read, and changes less.
const (
	freshFor     = time.Second
	longFreshFor = 5 * time.Second
	maxAnswers   = 64 // that are kept
)

// answer is an answer that is being made, or was.
type answer struct {
	done     chan struct{} // closed when overview and err are set
	expires  time.Time
	overview *api.Overview
	err      error
}

// Handlers returns the handlers by the name of the endpoint.
func (o *Overview) Handlers() map[string]server.Handler {
	return map[string]server.Handler{"overview": server.JSON(o.handle)}
}

// handle returns the overview that a request asks for, or the one that was made for the same request
// at most a second ago.
func (o *Overview) handle(ctx context.Context, q *api.OverviewRequest) (*api.Overview, error) {
	window, err := parseWindow(q.Window)
	if err != nil {
		return nil, err
	}
	key := api.OverviewRequest{Window: window.String(), Queue: q.Queue}
	a, first := o.answer(key, window)
	if first {
		a.overview, a.err = o.read(context.WithoutCancel(ctx), window, q.Queue) // others may wait for it
		close(a.done)
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if a.err == nil {
		server.SetIndex(ctx, a.overview.AsOf.Index)
	}
	return a.overview, a.err
}

// parseWindow returns the window of a request.
func parseWindow(text string) (time.Duration, error) {
	if text == "" {
		return time.Hour, nil
	}
	window, err := duration.Parse(text)
	if err != nil || window < time.Minute || window > series.Retention || window%time.Minute != 0 {
		return 0, &job.InvalidError{Reason: fmt.Sprintf("window is %q; must be whole minutes up to 24h, such as 15m, 1h or 24h", text)}
	}
	return window, nil
}

// answer returns the answer for a request. If first is true, the caller has to make it.
func (o *Overview) answer(key api.OverviewRequest, window time.Duration) (a *answer, first bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if a := o.cache[key]; a != nil && now.Before(a.expires) {
		return a, false
	}
	for other, a := range o.cache {
		if !now.Before(a.expires) {
			delete(o.cache, other)
		}
	}
	if o.cache == nil {
		o.cache = make(map[api.OverviewRequest]*answer)
	}
	a = &answer{done: make(chan struct{}), expires: now.Add(freshFor)}
	if window > time.Hour {
		a.expires = now.Add(longFreshFor)
	}
	if len(o.cache) < maxAnswers {
		o.cache[key] = a
	}
	return a, true
}

// read makes an overview.
func (o *Overview) read(ctx context.Context, window time.Duration, queue string) (*api.Overview, error) {
	status, err := o.Status(ctx)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	view := o.Recorder.clone().Read(window, queue, now)
	overview := &api.Overview{
		Node: o.Node, At: now.UTC(), AsOf: api.AsOf{Index: view.Index, At: view.At}, Certain: o.Quorum(),
		Window: window.Milliseconds(), Queue: queue,
		Points: pointsOf(view), Totals: totalsOf(&view.Total), Failures: []api.OverviewFailure{}, Others: view.OtherErrors,
		Limits: []api.Limit{}, Members: status.Members, Authority: status.Authority, Readiness: status.Readiness,
		Timeline: []api.OverviewHappening{},
	}
	if view.Index > 0 {
		overview.KnownSince = &view.Since
	}
	for _, f := range view.Failures {
		overview.Failures = append(overview.Failures, api.OverviewFailure(f))
	}
	for _, h := range slices.Backward(view.Happenings) {
		overview.Timeline = append(overview.Timeline, api.OverviewHappening(h))
	}
	o.readLedger(overview, view, now)
	return overview, nil
}

// maxQueues is how many queues an overview has at most.
const maxQueues = 200

// readLedger sets what an overview has of the ledger, and its queues.
func (o *Overview) readLedger(overview *api.Overview, view *series.View, now time.Time) {
	var queues []ledger.QueueView
	o.View(func(l *ledger.Ledger) {
		queues = l.Queues()
		for _, v := range l.Limits(now) {
			if limit := api.LimitOf(&v, now); limit.Blocks() {
				overview.Limits = append(overview.Limits, limit)
			}
		}
	})
	var backlog [job.States]int
	for i := range queues {
		for state, n := range queues[i].Counts {
			backlog[state] += n
		}
	}
	overview.Backlog = api.StateCounts(backlog)
	o.setQueues(overview, view, queues, now)
	for _, q := range view.Queues {
		addCounts(&overview.LastMinute, &q.Recent)
	}
	addCounts(&overview.LastMinute, &view.Rest.Recent)
	if overview.Queue != "" {
		overview.LastMinute = countsOf(new(view.Queues[overview.Queue].Recent))
	}
}

// setQueues sets the queues of an overview to those in which most happened or is left to do.
func (o *Overview) setQueues(overview *api.Overview, view *series.View, queues []ledger.QueueView, now time.Time) {
	weight := func(q *ledger.QueueView) uint64 {
		stats := view.Queues[q.Name]
		left := q.Counts[job.Waiting] + q.Counts[job.Delayed] + q.Counts[job.Active]
		return uint64(left) + stats.Counts[series.Accepted] + stats.Counts[series.Started]
	}
	slices.SortStableFunc(queues, func(a, b ledger.QueueView) int { return cmp.Compare(weight(&b), weight(&a)) })
	overview.MoreQueues = max(0, len(queues)-maxQueues)
	queues = queues[:min(len(queues), maxQueues)]
	overview.Queues = make([]api.OverviewQueue, len(queues))
	for i := range queues {
		q := &queues[i]
		stats, counted := view.Queues[q.Name]
		overview.Queues[i] = api.OverviewQueue{
			Name: q.Name, State: api.QueueState(q.Paused), Backlog: api.StateCounts(q.Counts),
			Counted:    counted || len(view.Queues) < maxQueues, // else it may be one of the rest
			LastMinute: countsOf(&stats.Recent), Totals: totalsOf(&stats.Stats), Ended: stats.Ended,
		}
	}
	o.View(func(l *ledger.Ledger) {
		for i := range overview.Queues {
			if oldest, ok := l.OldestWaitingJob(overview.Queues[i].Name); ok {
				overview.Queues[i].Oldest = api.NewOldestJob(oldest.ID, oldest.Accepted, now)
			}
		}
	})
}

// pointsOf returns the points of a view as the API shows them.
func pointsOf(v *series.View) api.OverviewPoints {
	p := api.OverviewPoints{Step: v.Step.Milliseconds(), Start: v.Start}
	for i := range v.Points {
		point := &v.Points[i]
		for kind, list := range [series.Kinds]*[]*uint64{
			series.Accepted: &p.Accepted, series.Started: &p.Started, series.Completed: &p.Completed, series.Retried: &p.Retried,
			series.Failed: &p.Failed, series.Cancelled: &p.Cancelled, series.Expired: &p.Expired, series.Returned: &p.Returned,
		} {
			var number *uint64
			if point.Known {
				number = &point.Counts[kind]
			}
			*list = append(*list, number)
		}
		wait, run := api.OverviewTimes{}, api.OverviewTimes{}
		if point.Known {
			wait, run = timesOf(point.Wait), timesOf(point.Run)
		}
		p.WaitP50, p.WaitP99 = append(p.WaitP50, wait.P50), append(p.WaitP99, wait.P99)
		p.RunP50, p.RunP99 = append(p.RunP50, run.P50), append(p.RunP99, run.P99)
	}
	return p
}

func countsOf(c *series.Counts) (counts api.OverviewCounts) {
	addCounts(&counts, c)
	return counts
}

func addCounts(to *api.OverviewCounts, c *series.Counts) {
	to.Accepted += c[series.Accepted]
	to.Started += c[series.Started]
	to.Completed += c[series.Completed]
	to.Retried += c[series.Retried]
	to.Failed += c[series.Failed]
	to.Cancelled += c[series.Cancelled]
	to.Expired += c[series.Expired]
	to.Returned += c[series.Returned]
}

func totalsOf(s *series.Stats) api.OverviewTotals {
	return api.OverviewTotals{OverviewCounts: countsOf(&s.Counts), Wait: timesOf(s.Wait), Run: timesOf(s.Run)}
}

// timesOf returns quantiles in milliseconds.
func timesOf(q series.Quantiles) api.OverviewTimes {
	t := api.OverviewTimes{Count: q.Count}
	if q.Count > 0 {
		t.P50, t.P99 = milliseconds(q.P50), milliseconds(q.P99)
	}
	return t
}

func milliseconds(d time.Duration) *float64 {
	return new(float64(d.Round(time.Microsecond).Microseconds()) / 1000)
}
