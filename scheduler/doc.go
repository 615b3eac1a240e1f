// Package scheduler is the authority's mind: it takes jobs in, places their
// dispatches, settles their outcomes and tells the world. It runs only inside
// a tenure, the unbroken holding of the lease by this node.
//
// One goroutine, [mind.run], owns all that a tenure knows beyond the ledger:
// who has room, which placements are on their way through Raft, which
// dispatches are where. Everything that happens is posted to it; what it
// decides leaves as one Raft entry at a time:
//
//	notices, lane reads ─▶ intake ─┐
//	reports, answers    ─▶ settle ─┤            ┌─▶ assignments to nodes
//	offers              ─▶ place  ─┼─▶ entry ───┼─▶ answers to reports and callers
//	callers' commands   ───────────┤   (Raft)   └─▶ outbox: history, results, dead letters
//	ticks               ─▶ sweep  ─┘
//
// Group commit. An entry leaves at once when nothing is in flight and a job
// waits to be folded or placed. Settling alone waits a few milliseconds for
// such an entry to ride with. While entries are in flight a further one leaves
// only when it is worth its fsyncs: large enough, or old enough. So load makes
// entries larger, not the line longer.
//
// Placing rides in the fold's entry. A record that was read a moment ago may
// be placed by the same entry that folds it: accepted to started costs one
// JetStream quorum and one Raft quorum. Jobs whose fold is still in flight are
// kept in a shadow line, so that none overtakes another of its priority.
//
// Cron entries tick here. That a tick has come, and which one is next, is
// committed first; then its job is published under an id of the tick's own, by
// this tenure or the next, until a fold shows that it has arrived.
//
// Failure. Nothing here outlives the tenure. A new authority finds the running
// dispatches in the ledger and adopts them: it sends their assignments again,
// under the same ids, which nodes know. What a node does not confirm within
// its lease is given back.
package scheduler
