// Package statedir keeps the state of the runtime contract in a plain directory:
// without a node, without a network, in one short process per command. Package
// ledger implements the rules, as in a yard. This package only restores a ledger
// from the files, applies one command to it, and stores the result.
//
// # The files
//
// The state file, yardmaster.state, is authoritative: it holds authority, cursor,
// counts, every dispatch with its times, and the events that are kept. The other
// files are views for callers, derived from it: snapshot.json and its four
// sections, dispatch.json, events.json and mailbox.json. engine.lock is the lock
// file.
//
// The state file has its own text format and does not use
// [ledger.Ledger.Encode]. An encoded ledger can only be read by the release that
// wrote it, which is sufficient for a member that can be filled from the others,
// but not for a directory. The format also keeps events as lines that need not be
// parsed: a command only reads and writes them.
//
// # A commit
//
//	lock ─ load ─ apply ─ write and fsync all changed files under temporary names
//	     ─ rename the state file, fsync the directory     ◀── committed
//	     ─ rename the views ─ unlock
//
// A process that is killed before the second line has changed nothing. One that
// is killed after it leaves views that are one command behind, which the next
// command rewrites. The state file holds two hashes of each view: of the content
// it should have, and of the content that it replaces. They distinguish a view
// that is behind from one that another program has changed.
//
// # Guarantees
//
// A file that cannot be read is never overwritten and never treated as empty: the
// error names the file and the remedy. The lock is held from before the load
// until after the commit, so commands are serialized. Times are taken once, when
// something happens, and stored.
//
// # Directories of the original program
//
// A directory with an events.json but no state file was written by the program
// that defined the contract. Its events are applied as that program applies them,
// times come from dispatch.json, and the first command that is executed writes
// the state file.
package statedir
