package web

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// errNoFamily is what a value of no family of the table is answered with.
var errNoFamily = errors.New("the metric is not described")

// Emit takes one value of a metric of the table below, with its labels' values
// in their order.
type Emit func(name string, value float64, labels ...string)

// family is a metric that the roof is asked for whenever somebody looks.
type family struct {
	name, help string
	counts     bool // it only grows
	labels     []string
}

// families are those metrics. docs/metrics.md tells of each.
var families = []family{
	{"yard_ready", "1 if this node is ready.", false, nil},
	{"yard_accepting", "1 if jobs are accepted.", false, nil},
	{"yard_dispatching", "1 if jobs are started.", false, nil},
	{"yard_authority", "1 if this node holds the authority.", false, nil},
	{"yard_authority_known", "1 if this node's ledger shows an authority whose lease has not ended.", false, nil},
	{"yard_authority_epoch", "Epoch of the authority; it grows with every change.", false, nil},
	{"yard_authority_changes_total", "Changes of the epoch that this node has seen.", true, nil},
	{"yard_members", "Members by state, as the authority hears them.", false, []string{"state"}},
	{"yard_queues", "Queues there are.", false, nil},
	{"yard_queue_jobs", "Jobs of a queue by state.", false, []string{"queue", "state"}},
	{"yard_queue_paused", "1 if a queue is paused.", false, []string{"queue"}},
	{"yard_queue_oldest_waiting_seconds", "Since when the waiting job of a queue is due that was accepted first; 0 if none waits.", false, []string{"queue"}},
	{"yard_dispatches", "Dispatches in the ledger by state.", false, []string{"state"}},
	{"yard_held_keys", "Keys of guards that are held.", false, nil},
	{"yard_outbox_bytes", "What is committed and not yet told.", false, nil},
	{"yard_outbox_limit_bytes", "Size of the outbox at which all but settling stops.", false, nil},
	{"yard_outbox_items", "Events, results and dead letters that are committed and not yet told.", false, []string{"story"}},
	{"yard_history_events_total", "Events there have ever been in the ledger.", true, nil},
	{"yard_dead_letters_total", "Dead letters there have ever been in the ledger.", true, nil},
	{"yard_settled_total", "Dispatches that this node settled as the authority, by verdict.", true, []string{"verdict"}},
	{"yard_records_folded_total", "Records that this node folded as the authority, by what became of them.", true, []string{"became"}},
	{"yard_cron_entries", "Cron entries, running and paused.", false, []string{"state"}},
	{"yard_cron_ticks", "Ticks of the cron entries there are: fired, skipped because the last one's job had not ended, missed because nobody held the authority.", false, []string{"fate"}},
	{"yard_stale_outcomes_total", "Outcomes of dispatches that were no longer current.", true, nil},
	{"yard_lane_lag_records", "Records of a lane that are accepted and not folded.", false, []string{"lane"}},
	{"yard_raft_term", "Term of the Raft group.", false, nil},
	{"yard_raft_leader", "1 if this node is the Raft leader.", false, nil},
	{"yard_raft_voters", "Members whose voice counts.", false, nil},
	{"yard_raft_last_index", "Last index on this node's disk.", false, nil},
	{"yard_raft_committed_index", "Last index that is known to be committed.", false, nil},
	{"yard_raft_applied_index", "Last index in this node's ledger.", false, nil},
	{"yard_raft_contact_seconds", "Since the leader was heard; 0 on the leader, -1 if never.", false, nil},
	{"yard_jetstream_messages", "Messages in this node's streams.", false, nil},
	{"yard_jetstream_bytes", "Bytes in this node's streams.", false, nil},
	{"yard_jetstream_used_bytes", "Bytes of the store that this node's streams take.", false, nil},
	{"yard_jetstream_limit_bytes", "Bytes of the store that they may take.", false, nil},
	{"yard_jetstream_streams", "Streams of which this node has a replica.", false, nil},
	{"yard_jetstream_streams_leaderless", "Those of them whose leader this node does not know.", false, nil},
	{"yard_jetstream_stream_messages", "Messages in a stream, at its leader.", false, []string{"stream"}},
	{"yard_jetstream_stream_bytes", "Bytes in a stream, at its leader.", false, []string{"stream"}},
	{"yard_jetstream_replica_lag", "Operations that the slowest replica of a stream is behind, at its leader.", false, []string{"stream"}},
	{"yard_jetstream_replicas_offline", "Replicas of a stream that were not heard lately, at its leader.", false, []string{"stream"}},
	{"yard_scrub_ended_timestamp_seconds", "When this node last had read all its copies of streams, in seconds since 1970.", false, nil},
	{"yard_scrub_seconds", "How long that took.", false, nil},
	{"yard_scrub_messages", "Messages that this node last read in its copy of a stream.", false, []string{"stream"}},
	{"yard_scrub_wrong_messages", "Those that are missing there, not readable, or not what the other copies have.", false, []string{"stream"}},
	{"yard_disk_free_bytes", "Bytes that are free for the node where its data lies.", false, nil},
	{"yard_disk_refuse_bytes", "Free bytes below which this node takes no jobs in.", false, nil},
	{"yard_disk_stop_bytes", "Free bytes below which this node decides nothing new.", false, nil},
	{"yard_disk_size_bytes", "Bytes of the file system that its data lies in.", false, nil},
	{"yard_certificate_expires_timestamp_seconds", "When the certificate of a door ends, in seconds since 1970.", false, []string{"door"}},
	{"yard_overhop_connections", "Connections at this node's Overhop edge.", false, nil},
	{"yard_overhop_workers", "Those of them that are registered.", false, nil},
	{"yard_overhop_subscriptions", "Subscriptions of workers at this node.", false, nil},
	{"yard_overhop_credits", "Jobs that the workers of this node would take now.", false, nil},
	{"yard_runner_processes", "Processes there should be.", false, []string{"runner"}},
	{"yard_runner_processes_up", "Processes that take dispatches.", false, []string{"runner"}},
	{"yard_runner_slots", "Slots of the processes that are up.", false, []string{"runner"}},
	{"yard_runner_in_flight", "Dispatches that run.", false, []string{"runner"}},
	{"yard_runner_crash_looping", "Processes in a crash loop.", false, []string{"runner"}},
	{"yard_runner_restarts_total", "Processes that were started in place of one that had ended.", true, []string{"runner"}},
}

// Metrics are what a node counts, and what it is asked for when somebody looks.
type Metrics struct {
	registry *prometheus.Registry
	handler  http.Handler
	gather   atomic.Pointer[func(context.Context, Emit)]
	about    map[string]*prometheus.Desc

	accepted       prometheus.Counter
	refused        *prometheus.CounterVec
	started, ended *prometheus.CounterVec
	waited, took   *prometheus.HistogramVec
	requests       *prometheus.CounterVec
	requestSeconds prometheus.Histogram
}

// scrapesAtOnce and gatherTime bound what it costs to be looked at.
const (
	scrapesAtOnce = 4
	gatherTime    = 2 * time.Second
)

// NewMetrics makes the node's own counters.
func NewMetrics() *Metrics {
	seconds := prometheus.ExponentialBuckets(0.001, 4, 10) // 1 ms to about 4 minutes
	m := &Metrics{registry: prometheus.NewRegistry(), about: map[string]*prometheus.Desc{}}
	for _, f := range families {
		m.about[f.name] = prometheus.NewDesc(f.name, f.help, f.labels, nil)
	}
	m.accepted = prometheus.NewCounter(prometheus.CounterOpts{Name: "yard_jobs_accepted_total", Help: "Jobs that were accepted at this node; not those published straight to a stream."})
	m.refused = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "yard_jobs_refused_total", Help: "Well-formed jobs that this node did not accept, by the code of the answer."}, []string{"code"})
	for _, code := range []string{"400", "404", "409", "413", "429", "500", "503"} { // so that rates begin at nothing
		m.refused.WithLabelValues(code)
	}
	m.started = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "yard_dispatches_started_total", Help: "Dispatches begun by this node's hands."}, []string{"hand"})
	m.ended = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "yard_dispatches_ended_total", Help: "Dispatches that ended at this node's hands, by outcome."}, []string{"hand", "outcome"})
	m.waited = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "yard_dispatch_wait_seconds", Help: "From when a job was due until this node's hands began it.", Buckets: seconds}, []string{"hand"})
	m.took = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "yard_dispatch_run_seconds", Help: "From when a dispatch was begun until its outcome.", Buckets: seconds}, []string{"hand"})
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "yard_http_requests_total", Help: "Requests of the API by endpoint and status."}, []string{"endpoint", "status"})
	m.requestSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "yard_http_request_seconds", Help: "How long answers of the API took, but for those that wait for a job.", Buckets: seconds})
	m.registry.MustRegister(m, m.accepted, m.refused, m.started, m.ended, m.waited, m.took, m.requests, m.requestSeconds,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesAtOnce})
	return m
}

// Ask says whom to ask from now on.
func (m *Metrics) Ask(gather func(context.Context, Emit)) { m.gather.Store(&gather) }

// Accepted counts a job.
func (m *Metrics) Accepted() { m.accepted.Inc() }

// Refused counts a job that was not accepted, by the code of its answer.
func (m *Metrics) Refused(code string) { m.refused.WithLabelValues(code).Inc() }

// Started counts a dispatch that a hand, "overhop" or "rrq/<runner>", has begun
// when its job had been due so long.
func (m *Metrics) Started(hand string, waited time.Duration) {
	m.started.WithLabelValues(hand).Inc()
	m.waited.WithLabelValues(hand).Observe(max(waited, 0).Seconds())
}

// Ended counts a dispatch that has ended.
func (m *Metrics) Ended(hand, outcome string, took time.Duration) {
	m.ended.WithLabelValues(hand, outcome).Inc()
	m.took.WithLabelValues(hand).Observe(took.Seconds())
}

// Describe is [prometheus.Collector].
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range m.about {
		to <- d
	}
}

// Collect is [prometheus.Collector].
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	gather := m.gather.Load()
	if gather == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), gatherTime)
	defer cancel()
	kinds := map[string]prometheus.ValueType{}
	for _, f := range families {
		if kinds[f.name] = prometheus.GaugeValue; f.counts {
			kinds[f.name] = prometheus.CounterValue
		}
	}
	(*gather)(ctx, func(name string, value float64, labels ...string) {
		about, ok := m.about[name]
		if !ok {
			about = prometheus.NewInvalidDesc(errNoFamily)
		}
		metric, err := prometheus.NewConstMetric(about, kinds[name], value, labels...)
		if err != nil {
			metric = prometheus.NewInvalidMetric(about, err)
		}
		to <- metric
	})
}
