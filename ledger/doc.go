// Package ledger is the replicated record of who holds authority and how far
// every job and every dispatch has got.
//
// It is a pure state machine. Commands come in with a [Stamp] that carries the
// index, the term and the time of the log entry they stand in; events come
// out; nothing else happens. Every node applies the same entries and so holds
// the same ledger: no clock, no dice, no map order, no goroutine.
//
//	command ──decide──▶ refused, nothing changes
//	              └───▶ fold: state changes, events join the outbox
//
// A job's states, with the dispatch events that each arrow emits:
//
//	          Fold                 stamp reaches its time
//	record ─────────▶ delayed ─────────────────────────────▶ waiting  queued
//	   └───────────────────────────────────────────────────▶ waiting  queued
//	waiting ──Place──▶ active                                notified
//	active ──Settle──▶ completed                             delivered
//	              ├──▶ failed (dead letter)                  failed
//	              └──▶ waiting | delayed (again, given back) failed (, queued)
//
// A record with guards (guards.go) may become no job, or take the place of one
// that has not started; its ruling is kept for whoever waits to hear of it.
//
// A cron entry (cron.go) waits for one tick at a time. The ledger computes no
// times: the authority names the tick that has come and the one after it.
//
// Commands that only the yard itself sends (command.go) are idempotent: said
// twice, they change nothing the second time. The eight commands of the
// runtime contract (contract.go) answer as the contract does.
//
// Fencing: every command but an acquisition must carry the epoch of the
// present authority, or it is refused. An outcome is matched with the dispatch
// it belongs to, whatever the epoch it was decided under.
//
// Memory: a job is one immutable record, replaced when it changes, with its
// ids and names shared. Trees that a snapshot needs are copy-on-write, so
// [Ledger.Copy] costs microseconds and a reader of the copy disturbs nobody.
package ledger
