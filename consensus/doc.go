// Package consensus is agreement: one raft group whose state machine is the
// ledger. It knows that commands are ordered, durable and applied alike on
// every member; what they mean is the ledger's business, and whatever happens
// because an entry was applied happens outside.
//
//	Submit ─▶ entry (stamp, epoch, commands) ─▶ log on a quorum of disks ─▶ ledger.Apply
//	                                                                         │
//	Pending.Wait ◀── Commit (index, term, results) ◀─────────────────────────┘
//
// A proposal ends in one of three ways: committed, with one result a command;
// certainly not proposed ([*NotLeaderError], [ErrBusy], [ErrClosed],
// [ErrTooLarge]); or unknown ([ErrUnknown]): leadership was lost, the disk
// failed or the caller's patience ended while the entry was on its way, and it
// may be committed yet. Commands are therefore made so that repeating them
// changes nothing.
//
// [Node.Lead] is the only leadership code: what a leader does runs inside one
// function whose context ends with the term, and the next term does not begin
// before that function has returned.
//
// What can go wrong below, and what is done about it:
//
//   - A disk that hangs would stop a leader without unseating it, because
//     raft's heartbeats do not touch the disk. Every write has a deadline: the
//     first miss fails the write, so that the leader steps down, and a second
//     one calls Config.Stuck, which ends the process (store.go).
//   - A flipped bit in the log is found by the checksum of the entry, when it
//     is written, sent or applied, and stops the node: an entry is never
//     skipped (entry.go). Snapshots are checksummed by the chunk (fsm.go).
//   - A member is held to what it has written and acknowledged. Before anything
//     else of it speaks, its files are read whole (inspect.go), entries against
//     their seals (store.go), and term, vote and reach against the marks beside
//     the log (mark.go) and what other members have seen (package roster).
//   - A directory that was emptied is refused before raft hears of it (package
//     roster), and one that lost raft's files alone, here.
//   - Raft bounds its log by the number of entries while ours are batches: a
//     snapshot is taken by bytes.
package consensus
