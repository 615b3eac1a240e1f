package node

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/runnerpool"
	"yardmaster/web"
)

// What the metrics are told when somebody looks at them. Nothing here counts:
// it is read from the ledger, from the status, and from what the rooms count.

// gather tells the metrics how this node and the yard stand.
func (n *Node) gather(ctx context.Context, emit web.Emit) {
	s := n.status(ctx)
	emit("yard_ready", one(s.Readiness.Ready))
	emit("yard_accepting", one(s.Readiness.Accepting))
	emit("yard_dispatching", one(s.Readiness.Dispatching))
	emit("yard_authority", one(s.Authority.Owner == s.Node && !s.Authority.Expired))
	emit("yard_authority_known", one(s.Authority.Owner != "" && !s.Authority.Expired))
	emit("yard_authority_epoch", float64(s.Authority.Epoch))
	emit("yard_authority_changes_total", float64(n.watch.seen()))
	for state, count := range map[string]uint64{
		"pending": s.Backlog.Pending, "notified": s.Backlog.Notified, "delivered": s.Backlog.Delivered, "failed": s.Backlog.Failed,
	} {
		emit("yard_dispatches", float64(count), state)
	}
	members := map[string]int{"up": 0, "draining": 0, "down": 0, "unknown": 0}
	for i := range s.Members {
		members[s.Members[i].State]++
	}
	for state, count := range members {
		emit("yard_members", float64(count), state)
	}
	emit("yard_held_keys", float64(s.HeldKeys))
	emit("yard_stale_outcomes_total", float64(s.StaleOutcomes))
	for _, l := range s.Lanes {
		if l.Leader != "" { // without one nobody knows
			emit("yard_lane_lag_records", float64(l.Lag), strconv.Itoa(l.Lane))
		}
	}
	emit("yard_overhop_connections", float64(s.Workers.Connections))
	emit("yard_overhop_workers", float64(s.Workers.Registered))
	emit("yard_overhop_subscriptions", float64(s.Workers.Subscriptions))
	emit("yard_overhop_credits", float64(s.Workers.Credits))
	for i := range s.Pools {
		gatherPool(emit, &s.Pools[i])
	}
	n.gatherRaft(emit)
	n.gatherJetStream(emit)
	var disk unix.Statfs_t
	if err := unix.Statfs(n.cfg.Node.DataDir, &disk); err == nil { // without an answer there is no value
		emit("yard_disk_free_bytes", float64(disk.Bavail)*float64(disk.Bsize))
		room := n.keeper.Room()
		emit("yard_disk_refuse_bytes", float64(room.Refuse))
		emit("yard_disk_stop_bytes", float64(room.Stop))
		emit("yard_disk_size_bytes", float64(disk.Blocks)*float64(disk.Bsize))
	}
	for _, store := range n.shown() {
		emit("yard_certificate_expires_timestamp_seconds", float64(store.Until().Unix()), store.Door())
	}
	n.gatherDecisions(emit)
	n.gatherScrub(emit)
	gatherLedger(n.raft.View, emit)
	gatherQueues(n.raft.View, emit)
}

func one(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func gatherPool(emit web.Emit, p *runnerpool.PoolStatus) {
	emit("yard_runner_processes", float64(p.Size), p.Runner)
	emit("yard_runner_processes_up", float64(p.Up), p.Runner)
	emit("yard_runner_slots", float64(p.Slots), p.Runner)
	emit("yard_runner_in_flight", float64(p.InFlight), p.Runner)
	emit("yard_runner_crash_looping", float64(p.Looping), p.Runner)
	restarts := 0
	for i := range p.Members {
		restarts += p.Members[i].Restarts
	}
	emit("yard_runner_restarts_total", float64(restarts), p.Runner)
}

func (n *Node) gatherRaft(emit web.Emit) {
	raft := n.raft.Status()
	emit("yard_raft_leader", one(raft.State == "leader"))
	emit("yard_raft_term", float64(raft.Term))
	emit("yard_raft_last_index", float64(raft.Last))
	emit("yard_raft_committed_index", float64(raft.Commit))
	emit("yard_raft_applied_index", float64(raft.Applied))
	emit("yard_raft_contact_seconds", contactSeconds(raft.Contact))
	voters := 0
	for _, m := range raft.Members {
		if m.Voter {
			voters++
		}
	}
	emit("yard_raft_voters", float64(voters))
}

// contactSeconds is since when the leader was heard; -1, and not a nanosecond
// less than none, if it never was.
func contactSeconds(contact time.Duration) float64 {
	if contact < 0 {
		return -1
	}
	return contact.Seconds()
}

func (n *Node) gatherJetStream(emit web.Emit) {
	s, err := n.messages.Storage()
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
		case n.cfg.Node.Name:
			emit("yard_jetstream_stream_messages", float64(stream.Messages), stream.Name)
			emit("yard_jetstream_stream_bytes", float64(stream.Bytes), stream.Name)
			emit("yard_jetstream_replica_lag", float64(stream.Behind), stream.Name)
			emit("yard_jetstream_replicas_offline", float64(stream.Offline), stream.Name)
		}
	}
	emit("yard_jetstream_streams_leaderless", float64(leaderless))
}

// gatherDecisions tells what this node has decided as the authority.
func (n *Node) gatherDecisions(emit web.Emit) {
	c := n.mind.Counts()
	for verdict, count := range map[string]uint64{"done": c.Done, "again": c.Again, "back": c.Back, "dead": c.Dead, "stale": c.Stale} {
		emit("yard_settled_total", float64(count), verdict)
	}
	for became, count := range map[string]uint64{
		"job": c.Jobs, "known": c.Known, "duplicate": c.Duplicate, "limited": c.Limited, "debounced": c.Debounced, "rejected": c.Rejected,
	} {
		emit("yard_records_folded_total", float64(count), became)
	}
}

// gatherLedger tells what the ledger numbers: the same on every node, and not
// begun anew with the process.
func gatherLedger(view func(func(*ledger.Ledger)), emit web.Emit) {
	view(func(l *ledger.Ledger) {
		emit("yard_outbox_bytes", float64(l.OutboxBytes()))
		emit("yard_outbox_limit_bytes", ledger.MaxOutbox)
		emit("yard_outbox_items", float64(l.LastEvent()-l.ToldEvents()), "events")
		emit("yard_outbox_items", float64(len(l.ResultsAfter(0))), "results")
		emit("yard_outbox_items", float64(len(l.DeadAfter(0))), "dead_letters")
		if l.Index() > 0 { // a node that has just started knows nothing: it would look as if they had begun anew
			emit("yard_history_events_total", float64(l.LastEvent()))
			emit("yard_dead_letters_total", float64(l.LastDead()))
		}
		entries, paused := 0, 0
		var fired, skipped, overdue uint64
		l.Crons("", func(c ledger.CronView) bool {
			entries++
			if c.Paused {
				paused++
			}
			fired, skipped, overdue = fired+c.Fired, skipped+c.Skipped, overdue+c.Overdue
			return true
		})
		emit("yard_cron_entries", float64(entries-paused), "running")
		emit("yard_cron_entries", float64(paused), "paused")
		emit("yard_cron_ticks", float64(fired), "fired")
		emit("yard_cron_ticks", float64(skipped), "skipped")
		emit("yard_cron_ticks", float64(overdue), "missed")
	})
}

// maxLabelled is how many queues have metrics of their own: those with the most
// jobs that have not ended. The others are added up under otherQueues, which is
// no queue's name.
const (
	maxLabelled = 100
	otherQueues = "(others)"
)

func gatherQueues(view func(func(*ledger.Ledger)), emit web.Emit) {
	var queues []ledger.QueueView
	view(func(l *ledger.Ledger) { queues = l.Queues() })
	emit("yard_queues", float64(len(queues)))
	open := func(q *ledger.QueueView) int {
		return q.Counts[job.Waiting] + q.Counts[job.Delayed] + q.Counts[job.Active]
	}
	slices.SortStableFunc(queues, func(a, b ledger.QueueView) int { return cmp.Compare(open(&b), open(&a)) })
	labelled := queues[:min(len(queues), maxLabelled)]
	due := make([]time.Time, len(labelled))
	view(func(l *ledger.Ledger) {
		for i := range labelled {
			due[i], _ = l.OldestWaiting(labelled[i].Name)
		}
	})
	now := time.Now()
	for i := range labelled {
		q, age := &labelled[i], 0.0
		if !due[i].IsZero() {
			age = max(now.Sub(due[i]).Seconds(), 0)
		}
		emit("yard_queue_oldest_waiting_seconds", age, q.Name)
		emit("yard_queue_paused", one(q.Paused), q.Name)
		for state := job.Waiting; state <= job.Failed; state++ {
			emit("yard_queue_jobs", float64(q.Counts[state]), q.Name, state.String())
		}
	}
	if len(queues) == len(labelled) {
		return
	}
	var others [6]int
	for i := range queues[maxLabelled:] {
		for state := job.Waiting; state <= job.Failed; state++ {
			others[state] += queues[maxLabelled+i].Counts[state]
		}
	}
	for state := job.Waiting; state <= job.Failed; state++ {
		emit("yard_queue_jobs", float64(others[state]), otherQueues, state.String())
	}
}
