// Package board publishes the state of the yard in key-value buckets that any
// client may watch.
//
// # Overview
//
// A board is a key-value bucket. The queues, the nodes, the authority and the cron
// entries have one each. Its rows are projections of the
// ledger and of what the authority knows. Only the authority writes them, and they
// are only for people: no part of the yard reads them. So a board may be late or
// missing without any other effect.
//
// # Passes
//
// About once a second the [Updater] gets the rows of each board from its [Source],
// as hashes, and compares them with what is stored. It writes the rows that
// differ, the most urgent first: at most maxWritesPerSecond a second for all
// boards together, and as many more at once after a quiet second. Each write is
// conditional on the row's revision. Rows that exceed the limit wait for the next
// pass, those that were not written for the longest time first.
//
// A row has a stable part, such as whether a queue is paused, and a volatile one,
// such as how many jobs wait. Changes of a stable part are written before all
// others. The volatile part may be written at a slower pace, so that a row's
// history covers more than a few seconds.
//
// # Other writers
//
// The updater watches the boards. At first it receives the existing rows, from an
// earlier tenure or from before a restart. Rows that are still correct are kept,
// others are rewritten, and those of things that no longer exist are removed.
// After that it receives every write. A write that is not its own is logged and
// overwritten. A board with few rows may be written at the beginning without a
// watch, because a watch needs JetStream's meta leader, which would delay the news
// of a failover.
//
// # Failures
//
// If the store fails, the boards are out of date and a warning is logged; nothing
// else happens. A failed write is repeated a second later. An updater whose view
// of the boards turns out to be wrong reads all of them again.
package board
