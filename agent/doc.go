// Package agent runs a node's share of the work: it offers the node's capacity to
// the authority, starts the dispatches that the authority assigns, and keeps their
// outcomes until the authority has committed them.
//
// Targets do the work itself: the edge for TCP workers, the runner pool for local
// processes. They report capacity and outcomes to the agent through [Agent.Offer]
// and [Agent.Report]. Assignments come from the authority; the agent's reports and
// heartbeats go to it through the [Transport].
//
//	authority ──Assign──▶ loading ─▶ starting ─▶ running ─▶ ending ──Report──▶ authority
//	                        │ body     Target.Start   outcome   │
//	                        └─ lost: an outcome at once         └─ settled: remembered for a while, not run again
//
// Three rules make this safe. The agent never starts a dispatch twice: not while its
// outcome is pending, and not for some time afterwards. It refuses assignments of an
// epoch lower than the highest it has seen. And it works under a lease: each
// acknowledged heartbeat extends the lease, counted on the monotonic clock from
// before the heartbeat was sent. When the lease expires, the agent stops every
// running dispatch and starts none until the authority answers again, because from
// then on the authority may assign the jobs to other nodes.
//
// A worker may resume its dispatch at another node. That node's agent has the
// dispatch from [Agent.Adopt] on. This agent drops it, without an outcome, when the
// authority recalls it as superseded by a move later than the one that brought it
// here.
//
// Worker events (a worker has stalled or recovered) are kept and sent again like
// outcomes. They are numbered, because unlike outcomes they have no id.
//
// Offers are absolute numbers: the last value counts. Capacity reserved for an
// assignment that waits for its body is subtracted. Every report names the last
// batch of assignments that its offers take into account, so that the authority
// neither counts a slot twice nor loses one.
package agent
