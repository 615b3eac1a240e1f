// Package agent is a node's hands: it tells the authority what room there is,
// starts what the authority assigns, and keeps how it ended until the
// authority has committed it.
//
// The work itself is done by targets: TCP workers at the edge, local runner
// processes. They stand below and know the agent as the one they tell offers
// and outcomes to ([Agent.Offer], [Agent.Report]); the authority's orders come
// from above, through the [Bus].
//
//	authority ──Assign──▶ loading ─▶ starting ─▶ running ─▶ ending ──Report──▶ authority
//	                        │ body     Target.Start   Target's outcome   │
//	                        └─ lost: an outcome at once                  └─ settled: remembered a while, not run again
//
// Three rules make this safe. A dispatch seen once is never started again,
// neither while its outcome is on its way nor for some time after. Orders of
// a lower epoch than one seen are refused. And the node works on borrowed
// time: each answered beat lends it a lease, counted on the monotonic clock
// from before the beat was sent; when the lease is over, every running
// dispatch is stopped and nothing is started until the authority answers
// again, because the authority may give the work to others from then on.
//
// A worker may take its dispatch along to another node. It is in hand there
// from [Agent.Adopt] on, and let go here, without an outcome, when the authority
// recalls it as superseded by a later move than the one that brought it here.
//
// What targets notice of their workers, that one has stalled and that it has
// recovered, is kept and repeated like outcomes, and numbered, because unlike
// outcomes it has no name of its own.
//
// Room is told as absolute numbers, last value wins. What was assigned and is
// still waiting for its body is taken off, and every report says up to which
// batch of assignments its numbers hold, so that the authority never counts a
// place twice and never loses one.
package agent
