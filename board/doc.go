// Package board shows how the yard stands in buckets that anybody may watch.
//
// # Overview
//
// A board is a key-value bucket: one for the queues, one for the nodes, one
// for the authority, one for cron entries. Its rows are projections of the
// ledger and of what the authority hears, written by the authority alone and
// for people alone: nothing in the yard reads them back. So a board may be
// late, and may be missing, and nothing else notices.
//
// # A pass
//
// About once a second the [Keeper] asks its [Source] for the rows of each
// board, as hashes, and compares them with what stands there. Of those that
// differ it writes the most urgent, at most mostWrites a second of all boards
// and as many more at once after a quiet second, each on condition that the row
// still is what the keeper believes. What does not fit waits for the next pass,
// the longest unwritten first.
//
// A row has a solid part, such as whether a queue is paused, and a fluid one,
// such as how many jobs wait. A change of the solid part goes before all
// others; the fluid part may have a pace of its own, so that a row's history
// reaches back further than a few seconds.
//
// # Other hands
//
// The keeper watches the boards. At the beginning it hears what stands there,
// from an earlier tenure or from before a restart: rows that are still true
// stay as they are, others are written anew, and those of things that are no
// more are removed. Later it hears every write; one that is not its own is
// logged and overwritten. A board of few rows is written at the beginning
// without listening first, because a watch takes JetStream's meta leader, and
// who follows a failover wants to see it.
//
// # Failure
//
// A store that fails costs the boards' being up to date, a line in the log,
// and nothing more. What failed is tried again a second later; a keeper whose
// picture of a board turns out to be wrong looks at all of it again.
package board
