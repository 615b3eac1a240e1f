// Package statedir keeps the runtime contract in a plain directory: no node, no
// network, one short process per command. The rules are the ledger's, the very
// same that a yard replicates; this package only brings a ledger back, lets it
// judge one command, and stores what came of it.
//
// # The files
//
// One file is the truth, yardmaster.state: authority, cursor, counts, every
// dispatch with its times, and the events that are still told. The others are
// views that callers read: snapshot.json and its four sections, dispatch.json,
// events.json and mailbox.json. engine.lock is what everybody locks.
//
// The truth is text of its own form and not [ledger.Ledger.Encode]'s bytes. An
// encoded ledger is read by the release that wrote it, which is right for a
// member that can be filled from the others; a directory has no others. It is
// also what lets events stay lines that nobody parses: a command costs reading
// and writing them, no more.
//
// # A commit
//
//	lock ─ load ─ judge ─ write and fsync all that changes, under other names
//	     ─ rename the truth, fsync the directory     ◀── from here on it is done
//	     ─ rename the views ─ unlock
//
// Whoever is killed before the second line has changed nothing; whoever is
// killed after it has left views that are one command behind, and the next
// command makes them anew. The truth remembers two hashes of each view, what it
// should be and what lay there before. So a view that is behind is told from
// one that somebody else wrote.
//
// # What is never done
//
// Nothing that cannot be read is overwritten, and nothing starts empty because
// of it: the error names the file and the way out. The lock is held from before
// the load until after the commit, so no two commands see the same state.
// Times are taken once, when something happens, and stored.
//
// # Directories of the original
//
// Where there is no truth but an events.json, the directory was written by the
// program whose contract this is. Its events are folded as it would fold them,
// dispatch.json gives their times, and the first command that is carried out
// writes the truth beside them.
package statedir
