// Package health monitors a node: whether it may accept jobs and hold the
// authority, and what follows if not.
//
//	checks (disk, JetStream, routes, lanes) ─▶ conditions ─▶ status ─▶ other members
//	                                              │                       │
//	             intake closed, with a reason ◀───┴──▶ authority transferred to a fit member
//
// Each second the monitor runs its checks, publishes the result to the other
// members, and reads theirs. Statuses are exchanged over a channel that works
// without NATS, because NATS is what may be broken.
//
// What a node refuses depends on three facts: its own free disk space, the number
// of members with free disk space (a record needs a majority of disks), and
// whether it holds the authority. A holder that has been unfit for some seconds
// transfers the authority to a member that reports itself fit, at most once a
// minute.
//
// A [Reporter] puts together what a person or a program reads about a node and, as far as
// the node can see, the cluster: the status, the readiness with its reasons, and the
// snapshot of the runtime contract. What only the authority knows it asks the authority.
package health
