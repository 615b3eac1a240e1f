// Package scheduler makes the decisions of a cluster: it ingests jobs from the
// lanes, places their dispatches, settles their outcomes and publishes history.
// It does so only during a tenure, the time for which this node holds the
// authority lease without interruption.
//
// One goroutine, [eventLoop.run], owns the tenure's state beyond the ledger. Other
// goroutines post functions to it. The state is divided: [lanes] has the records to
// ingest, [capacity] what nodes offer, [placer] the placements in flight, [dispatches]
// the running dispatches, and [crons] the ticks. The [tenure] submits their decisions
// as Raft entries, one at a time:
//
//	lane records          ─▶ ingest ─┐
//	reports, answers      ─▶ settle ─┤            ┌─▶ assignments to nodes
//	offers                ─▶ place  ─┼─▶ entry ───┼─▶ replies to reports and callers
//	commands from callers ───────────┤   (Raft)   └─▶ outbox: history, results, dead letters
//	timer                 ─▶ sweep  ─┘
//
// Group commit. An entry is submitted at once if no entry is in flight and a job
// waits to be ingested or placed. Outcomes alone wait a few milliseconds, so that
// they can share such an entry. While entries are in flight, the next one is
// submitted only when it is large enough or old enough to be worth its fsyncs.
// Higher load therefore makes entries larger, not the queue of entries longer.
//
// Ingest and place share an entry. A record that was just read can be placed by
// the same entry that ingests it, so the time from accepted to started is one
// JetStream quorum and one Raft quorum. Jobs whose ingest is in flight are kept in
// provisional waitlists, so that no job overtakes another of its priority.
//
// Cron entries. The scheduler first commits that a tick has come and when the next
// one is due. Then this tenure, or the next one, publishes the tick's job under an
// id derived from the tick until it has been ingested.
//
// Failure. A tenure's state ends with the tenure. A new authority adopts the
// running dispatches that it finds in the ledger: it sends their assignments again
// under the same ids, which nodes recognize. It settles as lost each dispatch whose
// node sends no heartbeat before its lease ends.
package scheduler
