// Package ledger is the replicated state machine: it records which node holds
// the authority and the state of every job and every dispatch.
//
// It is deterministic. Commands come in with a [Stamp] that carries the index,
// term and time of their log entry; the state changes and events are appended
// to the outbox; there are no other effects. Every node applies the same
// entries and so has the same ledger. The package therefore uses no clock, no
// randomness, no map iteration order and no goroutines.
//
//	command ──decide──▶ refused, nothing changes
//	              └───▶ applied: state changes, events join the outbox
//
// The states of a job, with the dispatch event that each transition emits:
//
//	          Ingest               run time reached
//	record ─────────▶ delayed ─────────────────────────────▶ waiting  queued
//	   └───────────────────────────────────────────────────▶ waiting  queued
//	waiting ──Place──▶ active                                notified
//	active ──Settle──▶ completed                             delivered
//	              ├──▶ failed (dead letter)                  failed
//	              └──▶ waiting | delayed (retry, give-back)  failed (, queued)
//
// A record with guards (guards.go) may be refused as a duplicate or by a rate
// limit, or replace a job that has not started. The [Decision] is kept for a
// while, for the node whose client waits for it.
//
// A cron entry (cron.go) waits for one tick at a time. The ledger does not
// compute times: the authority proposes the tick that is due together with the
// next one.
//
// Each command is a type that applies itself. The state is in parts, and Ledger
// embeds those whose methods are its own:
//
//	Ledger         authority, members, replay, contract dispatches, stalls, restore
//	├ crons        cron entries
//	└ ingestion    lanes become jobs; decisions about records with guards
//	  └ dispatches jobs are placed, settled, cancelled, retried
//	    ├ jobs     the jobs by id, state and time, and their queues
//	    ├ guards   held keys
//	    └ outbox   events, results and dead letters that are not published yet
//
// Commands that only the system itself proposes (command.go) are idempotent: a
// repetition changes nothing. The eight commands of the runtime contract
// (contract.go) answer as the contract prescribes.
//
// Fencing: every command except an acquisition of the authority must carry the
// current epoch, or it is refused. An outcome is matched with its dispatch by
// job and number, whatever the epoch in which the dispatch was placed.
//
// Memory: the parts of a job are in tables (table.go) and indexes, which refer to them by
// number and have no pointers; names are shared. A command loads a job into a
// storedJob, and stores it changed. Tables, lists and trees are copy-on-write, so
// [Ledger.Copy] takes microseconds and reading the copy does not block the
// ledger.
package ledger
