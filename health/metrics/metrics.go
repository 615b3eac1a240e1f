// Package metrics reads the values of the metrics that change without an event to count:
// from the ledger, from the status, and from the counters of other packages.
package metrics

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/lanes"
	"github.com/yardmaster-dev/yardmaster/cluster/replication"
	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/health"
	"github.com/yardmaster-dev/yardmaster/internal/certs"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/web"
)

// Collector reads the values at each scrape. All fields are required.
type Collector struct {
	Node, DataDir string

	View         func(func(*ledger.Ledger)) // reads the local ledger
	Raft         func() consensus.Status
	Storage      func() (replication.Storage, error)
	Intake       *lanes.Publisher
	Decisions    func() scheduler.Counts // of this node as the authority
	Changes      func() int              // of the authority, since the node started
	Certificates func() []*certs.Store
	Schemas      func(func(*ledger.Schema, api.SchemaCounts)) // calls its argument with each schema, and what this node has found by it
	Chronicle    interface {
		Differences() (differences int, event uint64)
	}
	Index    func() api.IndexStatus
	Monitor  *health.Monitor
	Reporter *health.Reporter
}

// Collect emits all values.
func (c *Collector) Collect(ctx context.Context, emit web.Emit) {
	s, _ := c.Reporter.Status(ctx)
	emit("yard_ready", boolValue(s.Readiness.Ready))
	emit("yard_accepting", boolValue(s.Readiness.Accepting))
	emit("yard_dispatching", boolValue(s.Readiness.Dispatching))
	emit("yard_authority", boolValue(s.Authority.Owner == s.Node && !s.Authority.Expired))
	emit("yard_authority_known", boolValue(s.Authority.Owner != "" && !s.Authority.Expired))
	emit("yard_authority_epoch", float64(s.Authority.Epoch))
	emit("yard_authority_changes_total", float64(c.Changes()))
	crash.Counts(func(where string, panics uint64) { emit("yard_panics_total", float64(panics), where) })
	emitByLabel(emit, "yard_dispatches", map[string]uint64{
		"pending": s.Backlog.Pending, "notified": s.Backlog.Notified, "delivered": s.Backlog.Delivered, "failed": s.Backlog.Failed,
	})
	members := map[string]uint64{"up": 0, "draining": 0, "down": 0, "unknown": 0}
	for i := range s.Members {
		members[s.Members[i].State]++
	}
	emitByLabel(emit, "yard_members", members)
	for i := range s.Nodes {
		if offset := s.Nodes[i].ClockOffsetMS; offset != nil {
			emit("yard_member_clock_offset_seconds", float64(*offset)/1000, s.Nodes[i].Name)
		}
	}
	emit("yard_held_keys", float64(s.HeldKeys))
	emit("yard_finished_records", float64(s.Finished.Records), "yard")
	emit("yard_finished_records", float64(s.Finished.Own), "own")
	emit("yard_finished_records_limit", float64(s.Finished.Limit), "yard")
	emit("yard_finished_records_limit", job.MaxFinished, "own")
	oldest := 0.0
	if s.Finished.Oldest != nil {
		oldest = max(0, time.Since(*s.Finished.Oldest).Seconds())
	}
	emit("yard_finished_oldest_seconds", oldest)
	emit("yard_stale_outcomes_total", float64(s.StaleOutcomes))
	pressure := c.Intake.Pressure()
	emit("yard_ingest_lag_seconds", c.Intake.IngestLag().Seconds())
	emit("yard_ack_delay_seconds", pressure.Delay.Seconds())
	emit("yard_jobs_refused_by_load_total", float64(c.Intake.RefusedForLoad()))
	for _, l := range s.Lanes {
		if l.Leader != "" { // without a leader the lag is unknown
			emit("yard_lane_lag_records", float64(l.Lag), strconv.Itoa(l.Lane))
		}
	}
	emit("yard_overhop_connections", float64(s.Workers.Connections))
	emit("yard_overhop_workers", float64(s.Workers.Registered))
	emit("yard_overhop_subscriptions", float64(s.Workers.Subscriptions))
	emit("yard_overhop_credits", float64(s.Workers.Credits))
	for i := range s.Pools {
		collectPool(emit, &s.Pools[i])
	}
	c.collectRaft(emit)
	c.collectJetStream(emit)
	var disk unix.Statfs_t
	if err := unix.Statfs(c.DataDir, &disk); err == nil { // on an error the metrics are left out
		emit("yard_disk_free_bytes", float64(disk.Bavail)*float64(disk.Bsize))
		space := c.Monitor.FreeSpace()
		emit("yard_disk_refuse_bytes", float64(space.Refuse))
		emit("yard_disk_stop_bytes", float64(space.Stop))
		emit("yard_disk_size_bytes", float64(disk.Blocks)*float64(disk.Bsize))
	}
	for _, store := range c.Certificates() {
		emit("yard_certificate_expires_timestamp_seconds", float64(store.NotAfter().Unix()), store.Listener())
	}
	c.collectDecisions(emit)
	differences, _ := c.Chronicle.Differences()
	emit("yard_history_differences", float64(differences))
	c.collectIndex(emit)
	collectLedger(c.View, emit)
	collectQueues(c.View, emit)
	collectLimits(c.View, emit)
	collectOperations(c.View, emit)
	c.collectSchemas(emit)
}

// emitByLabel emits a metric with one label, of which counts has the value for each.
func emitByLabel(emit web.Emit, metric string, counts map[string]uint64) {
	for label, count := range counts {
		emit(metric, float64(count), label)
	}
}

// boolValue returns 1 for true and 0 for false.
func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// collectPool emits the state of the runner pool p of this node.
func collectPool(emit web.Emit, p *api.Pool) {
	emit("yard_runner_processes", float64(p.Size), p.Runner)
	emit("yard_runner_processes_up", float64(p.Up), p.Runner)
	emit("yard_runner_slots", float64(p.Slots), p.Runner)
	emit("yard_runner_in_flight", float64(p.InFlight), p.Runner)
	emit("yard_runner_crash_looping", float64(p.CrashLooping), p.Runner)
	restarts := 0
	for i := range p.Members {
		restarts += p.Members[i].Restarts
	}
	emit("yard_runner_restarts_total", float64(restarts), p.Runner)
}

// collectRaft emits the state of this node in the Raft group.
func (c *Collector) collectRaft(emit web.Emit) {
	raft := c.Raft()
	emit("yard_raft_leader", boolValue(raft.State == "leader"))
	emit("yard_raft_term", float64(raft.Term))
	emit("yard_raft_last_index", float64(raft.Last))
	emit("yard_raft_committed_index", float64(raft.Commit))
	emit("yard_raft_applied_index", float64(raft.Applied))
	emit("yard_raft_contact_seconds", contactSeconds(raft.Contact))
	emit("yard_raft_voters", float64(len(raft.Voters())))
	emit("yard_snapshot_pause_seconds", raft.CopyTime.Seconds())
}

// contactSeconds returns the seconds since the last contact with the leader, or -1 if
// there was none.
func contactSeconds(contact time.Duration) float64 {
	if contact < 0 {
		return -1
	}
	return contact.Seconds()
}

// whenFull are the values of the label when_full, by whether the stream refuses messages.
var whenFull = map[bool]string{true: "refuse", false: "evict"}

// collectJetStream emits the use of this node's JetStream storage, and the state of each
// stream that this node leads, so that every stream is emitted by one node only.
func (c *Collector) collectJetStream(emit web.Emit) {
	s, err := c.Storage()
	if err != nil {
		return // the server stops
	}
	emit("yard_jetstream_messages", float64(s.Messages))
	emit("yard_jetstream_bytes", float64(s.Bytes))
	emit("yard_jetstream_used_bytes", float64(s.Used))
	emit("yard_jetstream_limit_bytes", float64(s.Limit))
	emit("yard_jetstream_streams", float64(len(s.Streams)))
	leaderless := 0
	for _, stream := range s.Streams {
		switch stream.Leader {
		case "":
			leaderless++
		case c.Node:
			emit("yard_jetstream_stream_messages", float64(stream.Messages), stream.Name)
			emit("yard_jetstream_stream_bytes", float64(stream.Bytes), stream.Name)
			if stream.Limit > 0 {
				emit("yard_jetstream_stream_limit_bytes", float64(stream.Limit), stream.Name, whenFull[stream.Refuses])
			}
			oldest := 0.0
			if !stream.Oldest.IsZero() {
				oldest = max(0, time.Since(stream.Oldest).Seconds())
			}
			emit("yard_jetstream_stream_oldest_seconds", oldest, stream.Name)
			emit("yard_jetstream_replica_lag_operations", float64(stream.Lag), stream.Name)
			emit("yard_jetstream_replicas_offline", float64(stream.Offline), stream.Name)
		}
	}
	emit("yard_jetstream_streams_leaderless", float64(leaderless))
}

// collectDecisions emits how many dispatches this node's scheduler has settled, and how
// many records it has ingested, by their result, while this node held the authority. The
// names of the results are documented in docs/reference/metrics.md.
func (c *Collector) collectDecisions(emit web.Emit) {
	counts := c.Decisions()
	emitByLabel(emit, "yard_dispatches_settled_total", map[string]uint64{
		"done": counts.Done, "retried": counts.Retried, "given_back": counts.GivenBack, "dead": counts.Dead, "cancelled": counts.Cancelled, "stale": counts.Stale,
	})
	emitByLabel(emit, "yard_records_ingested_total", map[string]uint64{
		"job": counts.Jobs, "known": counts.Known, "duplicate": counts.Duplicate,
		"limited": counts.RateLimited, "debounced": counts.Debounced, "rejected": counts.Rejected,
	})
}

// collectIndex emits the state of the index of jobs.
func (c *Collector) collectIndex(emit web.Emit) {
	s := c.Index()
	emit("yard_index_lag_entries", float64(s.Lag))
	emit("yard_index_jobs", float64(s.Ended))
	emit("yard_index_bytes", float64(s.Bytes))
	emit("yard_index_files", float64(s.Files))
	emit("yard_index_rebuilt_ratio", s.Rebuilt)
	emit("yard_index_usable", boolValue(s.Unusable == "" && !s.Scanning))
	emit("yard_index_failures_total", float64(s.Failures))
}

// collectLedger emits counters of the ledger, which are the same on every node and do not
// restart with the process.
func collectLedger(view func(func(*ledger.Ledger)), emit web.Emit) {
	view(func(l *ledger.Ledger) {
		balance := l.Balance()
		emit("yard_ledger_imbalance", float64(balance.Imbalance()))
		emit("yard_time_ahead_seconds", l.Clock().Ahead().Seconds())
		emit("yard_outbox_bytes", float64(l.OutboxBytes()))
		emit("yard_outbox_limit_bytes", ledger.MaxOutbox)
		emit("yard_outbox_items", float64(l.LastEvent()-l.PublishedEvents()), "events")
		emit("yard_outbox_items", float64(len(l.ResultsAfter(0))), "results")
		emit("yard_outbox_items", float64(len(l.DeadLettersAfter(0))), "dead_letters")
		if l.Index() > 0 { // an empty ledger of a node that has just started would look like a counter reset
			emit("yard_history_events_total", float64(l.LastEvent()))
			emit("yard_dead_letters_total", float64(l.LastDeadLetter()))
		}
		entries, paused := 0, 0
		var fired, skipped, overdue uint64
		l.Crons("", func(c ledger.CronView) bool {
			entries++
			if c.Paused {
				paused++
			}
			fired, skipped, overdue = fired+c.Fired, skipped+c.Skipped, overdue+c.Missed
			return true
		})
		emit("yard_cron_entries", float64(entries-paused), "running")
		emit("yard_cron_entries", float64(paused), "paused")
		emit("yard_cron_ticks", float64(fired), "fired")
		emit("yard_cron_ticks", float64(skipped), "skipped")
		emit("yard_cron_ticks", float64(overdue), "missed")
	})
}

// maxQueueLabels is how many queues have their own series: those with the most jobs that
// have not ended. The rest are added up under [web.Others].
const maxQueueLabels = 100

// collectQueues emits the number of jobs of each queue by their states, how long its
// oldest job waits, and whether it is paused. Only the number of jobs is known of the
// queues without series of their own.
func collectQueues(view func(func(*ledger.Ledger)), emit web.Emit) {
	var queues []ledger.QueueView
	view(func(l *ledger.Ledger) { queues = l.Queues() })
	emit("yard_queues", float64(len(queues)))
	unfinished := func(q *ledger.QueueView) int {
		return q.Counts[job.Waiting] + q.Counts[job.Delayed] + q.Counts[job.Active]
	}
	slices.SortStableFunc(queues, func(a, b ledger.QueueView) int { return cmp.Compare(unfinished(&b), unfinished(&a)) })
	labelled := queues[:min(len(queues), maxQueueLabels)]
	rest := queues[len(labelled):]

	due := make([]time.Time, len(labelled))
	view(func(l *ledger.Ledger) {
		for i := range labelled {
			oldest, _ := l.OldestWaitingJob(labelled[i].Name)
			due[i] = oldest.Due
		}
	})
	now := time.Now()
	for i := range labelled {
		q, age := &labelled[i], 0.0
		if !due[i].IsZero() {
			age = max(now.Sub(due[i]).Seconds(), 0)
		}
		emit("yard_queue_oldest_waiting_seconds", age, q.Name)
		emit("yard_queue_paused", boolValue(q.Paused), q.Name)
		emitJobs(emit, q)
	}
	if len(rest) == 0 {
		return
	}
	var others ledger.QueueView
	others.Name = web.Others
	for i := range rest {
		for state, count := range rest[i].Counts {
			others.Counts[state] += count
		}
	}
	emitJobs(emit, &others)
}

// emitJobs emits the number of jobs of a queue in each state.
func emitJobs(emit web.Emit, q *ledger.QueueView) {
	for state := job.Waiting; int(state) < job.States; state++ {
		emit("yard_queue_jobs", float64(q.Counts[state]), q.Name, state.String())
	}
}
