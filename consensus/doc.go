// Package consensus replicates the ledger: one Raft group whose state machine
// is the ledger. The package guarantees that commands are ordered, durable and
// applied identically on every member. What commands mean is defined by package
// ledger; effects of an applied entry outside the ledger are the callers' task.
//
//	Submit ─▶ entry (stamp, epoch, commands) ─▶ log on a quorum of disks ─▶ ledger.Apply
//	                                                                         │
//	wait ◀── Commit (index, results) ◀───────────────────────────────────────┘
//
// A proposal ends in one of three ways: it is committed, with one result per
// command; it was certainly not proposed ([*NotLeaderError], [ErrBusy],
// [ErrClosed], [ErrTooLarge]); or its outcome is unknown ([ErrUnknown]),
// because leadership was lost, the disk failed or the caller stopped waiting
// while the entry was in flight. An unknown proposal may still be committed
// later, so commands are designed to be idempotent.
//
// [Node.Lead] is the only place where code depends on leadership: all work of a
// leader runs inside one function whose context ends with the term, and the
// next term's function does not start before that one has returned.
//
// Failures of the layers below, and how they are handled:
//
//   - A disk that hangs would block a leader without deposing it, because
//     Raft's heartbeats do not touch the disk. Every write has a deadline: the
//     first one missed fails the write, so that the leader steps down, and a
//     second one calls Config.OnFatal, which ends the process (guardedstore.go).
//   - A flipped bit in the log is detected by the checksum of the entry, when it
//     is written, sent or applied, and stops the node: an entry is never
//     skipped (entry.go). Snapshots have a checksum per chunk (fsm.go).
//   - A member must still have what it has written and acknowledged. Before the
//     node communicates with other members, its files are read completely
//     (openstore.go, packages wal and boltcheck), entries are compared with their
//     checksums (guardedstore.go), and term, vote and last index with the
//     watermarks beside the log (watermarks.go) and with what other members have
//     seen (package peers).
//   - A data directory that was emptied is refused before Raft starts (package
//     peers), and one that lost only Raft's files is refused here.
//   - Raft limits its log by the number of entries, but our entries are batches:
//     snapshots are therefore taken after a number of bytes, which grows with the
//     ledger, and a number of bytes stays in the log after one
//     (snapshottrigger.go).
package consensus
