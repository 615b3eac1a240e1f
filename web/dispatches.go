package web

import (
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

	mu       sync.Mutex
	lastUsed map[Dispatch]time.Time // of those with series of their own
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
		lastUsed:    map[Dispatch]time.Time{},
	}
}

func (m *dispatchMetrics) register(r *prometheus.Registry) {
	r.MustRegister(m.started, m.ended, m.finished, m.waitSeconds, m.runSeconds)
}

// Started counts a dispatch that has started, waited after its job was due. A negative
// time, because the clocks of two nodes differ, counts as 0.
func (m *Metrics) Started(d Dispatch, waited time.Duration) {
	labels := m.dispatches.labels(d, time.Now())
	m.dispatches.started.WithLabelValues(labels...).Inc()
	m.dispatches.waitSeconds.WithLabelValues(labels...).Observe(max(waited, 0).Seconds())
}

// Ended counts a dispatch that has ended, duration after its start.
func (m *Metrics) Ended(d Dispatch, outcome string, duration time.Duration) {
	labels := m.dispatches.labels(d, time.Now())
	m.dispatches.runSeconds.WithLabelValues(labels...).Observe(duration.Seconds())
	m.dispatches.ended.WithLabelValues(append(labels, outcome)...).Inc()
}

// Finished counts a job that has ended in a state with its dispatch.
func (m *Metrics) Finished(d Dispatch, state string) {
	m.dispatches.finished.WithLabelValues(append(m.dispatches.labels(d, time.Now()), state)...).Inc()
}

// labels returns the values of dispatchLabels that d is counted under at the time now. If
// maxDispatches others have series of their own, d gets those of the one that was not
// counted for the longest time, at least dispatchIdle, or else is counted under [Others].
func (m *dispatchMetrics) labels(d Dispatch, now time.Time) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.lastUsed[d]
	if !known && len(m.lastUsed) >= maxDispatches && !m.removeIdle(now) {
		return []string{d.Kind, d.Runner, Others, Others}
	}
	m.lastUsed[d] = now
	return d.labels()
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
	for d, at := range m.lastUsed {
		if at.Before(oldest) {
			idle, oldest = d, at
		}
	}
	if now.Sub(oldest) < dispatchIdle {
		return false
	}
	delete(m.lastUsed, idle)
	match := prometheus.Labels{}
	for i, value := range idle.labels() {
		match[dispatchLabels[i]] = value
	}
	for _, vec := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.started, m.ended, m.finished, m.waitSeconds, m.runSeconds} {
		vec.DeletePartialMatch(match)
	}
	return true
}
