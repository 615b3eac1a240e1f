package web

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
)

// Dispatch is what a dispatch is counted under.
type Dispatch struct {
	Kind     string // "worker" or "runner"
	Runner   string // the runner's name; "" for workers
	Queue    string
	Function string // "" if its job has none
}

// dispatchLabels are the labels for the fields of a [Dispatch].
var dispatchLabels = []string{"kind", "runner", "queue", "function"}

// Others is the label for the queues and functions without series of their own. No
// queue can have this name.
const Others = "(others)"

// Limits of the series of dispatches, whose queues and functions producers choose.
const (
	maxDispatches = 100       // queues and functions with series of their own
	dispatchIdle  = time.Hour // since when the one that makes room for another was last counted
)

// dispatchMetrics counts the dispatches of this node's executors.
type dispatchMetrics struct {
	started, ended, finished *prometheus.CounterVec
	waitSeconds, runSeconds  *prometheus.HistogramVec

	mu     crash.Mutex
	own    map[Dispatch]*dispatchSeries // those with series of their own
	others map[Dispatch]*dispatchSeries // those of [Others], by kind and runner
}

// dispatchSeries are the series of one [Dispatch], which are found once and not for each
// dispatch. A series is nil until something is counted in it: it must not appear before.
type dispatchSeries struct {
	labels          []string // the values of dispatchLabels
	started         prometheus.Counter
	waited, ran     prometheus.Observer
	ended, finished map[string]prometheus.Counter // by outcome, and by state
	lastUsed        time.Time
}

func newDispatchSeries(labels []string) *dispatchSeries {
	return &dispatchSeries{labels: labels, ended: map[string]prometheus.Counter{}, finished: map[string]prometheus.Counter{}}
}

// newDispatchMetrics returns metrics without any dispatch. buckets are those of the
// histograms, in seconds.
func newDispatchMetrics(buckets []float64) *dispatchMetrics {
	return &dispatchMetrics{
		started:     prometheus.NewCounterVec(prometheus.CounterOpts{Name: "yard_dispatches_started_total", Help: "Dispatches started by this node's executors."}, dispatchLabels),
		ended:       prometheus.NewCounterVec(prometheus.CounterOpts{Name: "yard_dispatches_ended_total", Help: "Dispatches that ended at this node's executors, by outcome."}, append(dispatchLabels, "outcome")),
		finished:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "yard_jobs_finished_total", Help: "Jobs whose last dispatch ended at this node's executors, by the state they ended in."}, append(dispatchLabels, "state")),
		waitSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "yard_dispatch_wait_seconds", Help: "Time from when a job was due until this node's executor started it.", Buckets: buckets}, dispatchLabels),
		runSeconds:  prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "yard_dispatch_run_seconds", Help: "Time from the start of a dispatch until its outcome.", Buckets: buckets}, dispatchLabels),
		own:         map[Dispatch]*dispatchSeries{},
		others:      map[Dispatch]*dispatchSeries{},
	}
}

func (m *dispatchMetrics) register(r *prometheus.Registry) {
	r.MustRegister(m.started, m.ended, m.finished, m.waitSeconds, m.runSeconds)
}

// Started counts a dispatch that has started, waited after its job was due. A negative
// time, because the clocks of two nodes differ, counts as 0.
func (m *Metrics) Started(d Dispatch, waited time.Duration) {
	ds := m.dispatches
	ds.mu.Lock()
	defer ds.mu.Unlock()
	s := ds.series(d, time.Now())
	if s.started == nil {
		s.started, s.waited = ds.started.WithLabelValues(s.labels...), ds.waitSeconds.WithLabelValues(s.labels...)
	}
	s.started.Inc()
	s.waited.Observe(max(waited, 0).Seconds())
}

// Ended counts a dispatch that has ended, duration after its start.
func (m *Metrics) Ended(d Dispatch, outcome string, duration time.Duration) {
	ds := m.dispatches
	ds.mu.Lock()
	defer ds.mu.Unlock()
	s := ds.series(d, time.Now())
	if s.ran == nil {
		s.ran = ds.runSeconds.WithLabelValues(s.labels...)
	}
	s.ran.Observe(duration.Seconds())
	s.count(s.ended, ds.ended, outcome)
}

// Finished counts a job that has ended in a state with its dispatch.
func (m *Metrics) Finished(d Dispatch, state string) {
	ds := m.dispatches
	ds.mu.Lock()
	defer ds.mu.Unlock()
	s := ds.series(d, time.Now())
	s.count(s.finished, ds.finished, state)
}

// count adds 1 to the counter of vec with the labels of s and value. known are the counters
// found before, by value.
func (s *dispatchSeries) count(known map[string]prometheus.Counter, vec *prometheus.CounterVec, value string) {
	counter := known[value]
	if counter == nil {
		counter = vec.WithLabelValues(append(slices.Clip(s.labels), value)...)
		known[value] = counter
	}
	counter.Inc()
}

// series returns the series that d is counted in at the time now. If maxDispatches others
// have series of their own, d gets those of the one that was not counted for the longest
// time, at least dispatchIdle, or else is counted under [Others]. m.mu must be held.
func (m *dispatchMetrics) series(d Dispatch, now time.Time) *dispatchSeries {
	of := m.own
	if m.own[d] == nil && len(m.own) >= maxDispatches && !m.removeIdle(now) {
		of, d.Queue, d.Function = m.others, Others, Others
	}
	s := of[d]
	if s == nil {
		s = newDispatchSeries(d.labels())
		of[d] = s
	}
	s.lastUsed = now
	return s
}

// labels returns the values of dispatchLabels. A label must be valid UTF-8.
func (d *Dispatch) labels() []string {
	return []string{d.Kind, d.Runner, d.Queue, strings.ToValidUTF8(d.Function, "\uFFFD")}
}

// removeIdle removes the series of the dispatch that was not counted for the longest time,
// if that is dispatchIdle or more. m.mu must be held.
func (m *dispatchMetrics) removeIdle(now time.Time) bool {
	var idle Dispatch
	oldest := now
	for d, s := range m.own {
		if s.lastUsed.Before(oldest) {
			idle, oldest = d, s.lastUsed
		}
	}
	if now.Sub(oldest) < dispatchIdle {
		return false
	}
	labels := m.own[idle].labels
	delete(m.own, idle)
	for _, s := range m.own { // two names that are not valid UTF-8 may have the same series
		if slices.Equal(s.labels, labels) {
			lastUsed := s.lastUsed
			*s = *newDispatchSeries(labels)
			s.lastUsed = lastUsed
		}
	}
	match := prometheus.Labels{}
	for i, value := range labels {
		match[dispatchLabels[i]] = value
	}
	for _, vec := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.started, m.ended, m.finished, m.waitSeconds, m.runSeconds} {
		vec.DeletePartialMatch(match)
	}
	return true
}
