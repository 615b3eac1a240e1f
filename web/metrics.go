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

// errUnknownMetric is reported for a value whose metric is not in families.
var errUnknownMetric = errors.New("unknown metric")

// Emit reports one value of a metric in families, with the values of its labels
// in order.
type Emit func(name string, value float64, labels ...string)

// family is a metric whose values are collected on each scrape.
type family struct {
	name, help string
	counts     bool // counter instead of gauge
	labels     []string
}

// families lists the metrics that are collected on each scrape.
// docs/reference/metrics.md describes them.
var families = []family{
	{"yard_ready", "1 if this node is ready.", false, nil},
	{"yard_accepting", "1 if jobs are accepted.", false, nil},
	{"yard_dispatching", "1 if jobs are started.", false, nil},
	{"yard_authority", "1 if this node holds the authority.", false, nil},
	{"yard_authority_known", "1 if this node's ledger shows an authority whose lease has not expired.", false, nil},
	{"yard_authority_epoch", "Epoch of the authority; it increases with every change.", false, nil},
	{"yard_authority_changes_total", "Changes of the epoch that this node has seen.", true, nil},
	{"yard_members", "Members by state, as seen by the authority.", false, []string{"state"}},
	{"yard_member_clock_offset_seconds", "Time by which a member's wall clock is ahead of the members' median, as seen by the authority; negative if it is behind.", false, []string{"member"}},
	{"yard_time_ahead_seconds", "Time by which the yard's time is ahead of the members' wall clocks; 0 unless they were set back.", false, nil},
	{"yard_queues", "Queues.", false, nil},
	{"yard_queue_jobs", "Jobs of a queue by state.", false, []string{"queue", "state"}},
	{"yard_queue_paused", "1 if a queue is paused.", false, []string{"queue"}},
	{"yard_queue_oldest_waiting_seconds", "Age of the oldest waiting job of a queue, since it was due; 0 if none waits.", false, []string{"queue"}},
	{"yard_limits", "Named limits.", false, nil},
	{"yard_limit_jobs", "Running and waiting jobs that use a limit.", false, []string{"limit", "state"}},
	{"yard_limit_slots", "Jobs that use a limit which may run at the same time; missing without such a bound.", false, []string{"limit"}},
	{"yard_limit_full_seconds", "Time for which as many jobs have been running as a limit permits; 0 if fewer run.", false, []string{"limit"}},
	{"yard_limit_circuit_open", "1 if the circuit of a limit is open; missing without a circuit.", false, []string{"limit"}},
	{"yard_operations", "Operations on many jobs: all that have not ended, and the ended ones of the last 7 days.", false, []string{"state"}},
	{"yard_operation_jobs", "Jobs that these operations have come to, by result: changed, skipped because the action did not apply, failed because it was refused.", false, []string{"action", "result"}},
	{"yard_operation_matched_jobs", "Jobs that an operation which has not ended has come to.", false, []string{"operation"}},
	{"yard_operation_expected_jobs", "Jobs that matched before an operation started which has not ended; missing if they were not all counted.", false, []string{"operation"}},
	{"yard_operation_rate_limit", "Jobs per second that an operation may change which has not ended; missing without such a bound.", false, []string{"operation"}},
	{"yard_operation_stalled_seconds", "Time since a running operation has come to jobs, or has begun to wait; 0 if it is paused.", false, []string{"operation"}},
	{"yard_limit_paused", "1 if a limit is paused.", false, []string{"limit"}},
	{"yard_dispatches", "Dispatches in the ledger by state.", false, []string{"state"}},
	{"yard_finished_records", "Records of finished jobs in the ledger; own: of queues with a retention setting of their own.", false, []string{"retention"}},
	{"yard_finished_records_limit", "Records of finished jobs that are kept at most.", false, []string{"retention"}},
	{"yard_finished_oldest_seconds", "Time since the end of the first job that the ledger still has, of queues without a retention setting of their own.", false, nil},
	{"yard_held_keys", "Unique, rate limit and debounce keys that are held.", false, nil},
	{"yard_ledger_imbalance", "Jobs accepted, minus those in all states and those removed; 0 unless the ledger miscounts.", false, nil},
	{"yard_history_differences", "Respects in which the ledger differs from its history, at the last check of this node as the authority.", false, nil},
	{"yard_index_lag_entries", "Log entries that the node has applied and its index of jobs does not have.", false, nil},
	{"yard_index_jobs", "Ended jobs in the index.", false, nil},
	{"yard_index_bytes", "Bytes of the files of the index.", false, nil},
	{"yard_index_files", "Files of the index.", false, nil},
	{"yard_index_rebuilt_ratio", "How much of the history is read that the index needs for jobs which the ledger has forgotten, 0 to 1.", false, nil},
	{"yard_index_usable", "1 if the index takes changes and has all jobs of the ledger.", false, nil},
	{"yard_panics_total", "Panics of this node that ended only the work for one peer, by what was served.", true, []string{"where"}},
	{"yard_index_failures_total", "Failures of the index since the node has started.", true, nil},
	{"yard_outbox_bytes", "Bytes committed and not yet published.", false, nil},
	{"yard_outbox_limit_bytes", "Size of the outbox at which all but settling stops.", false, nil},
	{"yard_outbox_items", "Events, results and dead letters that are committed and not yet published.", false, []string{"stream"}},
	{"yard_history_events_total", "Events there have ever been in the ledger.", true, nil},
	{"yard_dead_letters_total", "Dead letters there have ever been in the ledger.", true, nil},
	{"yard_dispatches_settled_total", "Dispatches that this node settled as the authority, by result.", true, []string{"result"}},
	{"yard_records_ingested_total", "Records that this node ingested as the authority, by result.", true, []string{"result"}},
	{"yard_schema_violations_total", "Payloads that did not match the present version of a schema, by result: refused at this node, rejected or only counted by this node as the authority.", true, []string{"queue", "function", "result"}},
	{"yard_cron_entries", "Cron entries, running and paused.", false, []string{"state"}},
	{"yard_cron_ticks", "Ticks of the existing cron entries by result: fired, skipped because the job of the tick before had not ended, missed because no node held the authority.", false, []string{"result"}},
	{"yard_stale_outcomes_total", "Outcomes of dispatches that were no longer current.", true, nil},
	{"yard_ingest_lag_seconds", "Age of the oldest record that is accepted and not ingested, in the lane that this node's jobs go to, as this node knows it.", false, nil},
	{"yard_ack_delay_seconds", "Time by which this node delays the acknowledgement of jobs, because of its load.", false, nil},
	{"yard_jobs_refused_by_load_total", "Jobs that this node refused because of its load, also those published straight to a stream.", true, nil},
	{"yard_lane_lag_records", "Records of a lane that are accepted and not ingested.", false, []string{"lane"}},
	{"yard_raft_term", "Term of the Raft group.", false, nil},
	{"yard_raft_leader", "1 if this node is the Raft leader.", false, nil},
	{"yard_raft_voters", "Voting members of the Raft group.", false, nil},
	{"yard_raft_last_index", "Last index on this node's disk.", false, nil},
	{"yard_raft_committed_index", "Last index that is known to be committed.", false, nil},
	{"yard_raft_applied_index", "Last index in this node's ledger.", false, nil},
	{"yard_raft_contact_seconds", "Time since the last contact with the leader; 0 on the leader, -1 if never.", false, nil},
	{"yard_snapshot_pause_seconds", "Time for which the last copy of the ledger, for a snapshot, a check or a list of jobs, has stopped this node's ledger; 0 before the first.", false, nil},
	{"yard_jetstream_messages", "Messages in this node's streams.", false, nil},
	{"yard_jetstream_bytes", "Bytes in this node's streams.", false, nil},
	{"yard_jetstream_used_bytes", "Bytes of the store that this node's streams use.", false, nil},
	{"yard_jetstream_limit_bytes", "Bytes of the store that they may use.", false, nil},
	{"yard_jetstream_streams", "Streams of which this node has a replica.", false, nil},
	{"yard_jetstream_streams_leaderless", "Streams of which this node has a replica, without a leader known to this node.", false, nil},
	{"yard_jetstream_stream_messages", "Messages in a stream, at its leader.", false, []string{"stream"}},
	{"yard_jetstream_stream_bytes", "Bytes in a stream, at its leader.", false, []string{"stream"}},
	{"yard_jetstream_stream_limit_bytes", "Bytes that a stream may have, at its leader; when it is full, it refuses messages or removes the oldest.", false, []string{"stream", "when_full"}},
	{"yard_jetstream_stream_oldest_seconds", "Age of the oldest message of a stream, which goes next, at its leader; 0 if it has none.", false, []string{"stream"}},
	{"yard_jetstream_replica_lag_operations", "Operations by which the slowest replica of a stream lags, at its leader.", false, []string{"stream"}},
	{"yard_jetstream_replicas_offline", "Replicas of a stream that are offline, at its leader.", false, []string{"stream"}},
	{"yard_disk_free_bytes", "Free bytes in the file system of the node's data directory.", false, nil},
	{"yard_disk_refuse_bytes", "Free bytes below which this node accepts no jobs.", false, nil},
	{"yard_disk_stop_bytes", "Free bytes below which this node starts nothing new.", false, nil},
	{"yard_disk_size_bytes", "Bytes of the file system with its data.", false, nil},
	{"yard_certificate_expires_timestamp_seconds", "Expiry of the certificate of a listener, in seconds since 1970.", false, []string{"listener"}},
	{"yard_overhop_connections", "Connections at this node's Overhop edge.", false, nil},
	{"yard_overhop_workers", "Workers registered at this node's Overhop edge.", false, nil},
	{"yard_overhop_subscriptions", "Subscriptions of workers at this node.", false, nil},
	{"yard_overhop_credits", "Jobs that the workers of this node can take now.", false, nil},
	{"yard_runner_processes", "Configured number of processes.", false, []string{"runner"}},
	{"yard_runner_processes_up", "Processes that take dispatches.", false, []string{"runner"}},
	{"yard_runner_slots", "Slots of the processes that are up.", false, []string{"runner"}},
	{"yard_runner_in_flight", "Running dispatches.", false, []string{"runner"}},
	{"yard_runner_crash_looping", "Processes in a crash loop.", false, []string{"runner"}},
	{"yard_runner_restarts_total", "Processes started to replace one that had ended.", true, []string{"runner"}},
}

// Metrics holds a node's counters and collects the families on each scrape.
type Metrics struct {
	registry  *prometheus.Registry
	handler   http.Handler
	collector atomic.Pointer[func(context.Context, Emit)]
	descs     map[string]*prometheus.Desc

	accepted       prometheus.Counter
	rejected       *prometheus.CounterVec
	dispatches     *dispatchMetrics
	requests       *prometheus.CounterVec
	requestSeconds prometheus.Histogram
}

// Limits of the cost of scrapes.
const (
	maxScrapes     = 4               // concurrent scrapes
	collectTimeout = 2 * time.Second // of the collector
)

// NewMetrics returns metrics without a collector; see [Metrics.SetCollector].
func NewMetrics() *Metrics {
	seconds := prometheus.ExponentialBuckets(0.001, 4, 10) // 1 ms to about 4 minutes
	m := &Metrics{registry: prometheus.NewRegistry(), descs: map[string]*prometheus.Desc{}, dispatches: newDispatchMetrics(seconds)}
	for _, f := range families {
		m.descs[f.name] = prometheus.NewDesc(f.name, f.help, f.labels, nil)
	}
	m.accepted = prometheus.NewCounter(prometheus.CounterOpts{Name: "yard_jobs_accepted_total", Help: "Jobs that were accepted at this node; not those published straight to a stream."})
	m.rejected = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "yard_jobs_refused_total", Help: "Well-formed jobs that this node did not accept, by the code of the answer."}, []string{"code"})
	for _, code := range []string{"400", "404", "409", "413", "429", "500", "503"} { // so that the series exist from the start
		m.rejected.WithLabelValues(code)
	}
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "yard_http_requests_total", Help: "Requests of the API by endpoint and status."}, []string{"endpoint", "status"})
	m.requestSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{Name: "yard_http_request_seconds", Help: "Duration of API requests, without those that wait for a job.", Buckets: seconds})
	m.dispatches.register(m.registry)
	m.registry.MustRegister(m, m.accepted, m.rejected, m.requests, m.requestSeconds,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
	return m
}

// SetCollector sets the function that emits the values of the metrics in families. It
// is called on each scrape.
func (m *Metrics) SetCollector(collector func(context.Context, Emit)) { m.collector.Store(&collector) }

// Accepted counts an accepted job.
func (m *Metrics) Accepted() { m.accepted.Inc() }

// Rejected counts a job that was not accepted, by the code of the error.
func (m *Metrics) Rejected(code string) { m.rejected.WithLabelValues(code).Inc() }

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range m.descs {
		to <- d
	}
}

// Collect implements [prometheus.Collector], which Prometheus' client library calls on
// each scrape. It calls the function of [Metrics.SetCollector], if one is set, with a
// context that ends after collectTimeout, and sends each value that the function
// emits. A value whose metric is not in families makes the scrape fail.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	collector := m.collector.Load()
	if collector == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	kinds := map[string]prometheus.ValueType{}
	for _, f := range families {
		kinds[f.name] = prometheus.GaugeValue
		if f.counts {
			kinds[f.name] = prometheus.CounterValue
		}
	}
	(*collector)(ctx, func(name string, value float64, labels ...string) {
		desc, ok := m.descs[name]
		if !ok {
			desc = prometheus.NewInvalidDesc(errUnknownMetric)
		}
		metric, err := prometheus.NewConstMetric(desc, kinds[name], value, labels...)
		if err != nil {
			metric = prometheus.NewInvalidMetric(desc, err)
		}
		to <- metric
	})
}
