// Package edge is the Overhop server of one node. It accepts TCP connections of
// workers and producers, and runs the cluster's jobs at those workers.
//
// Every connection has two goroutines. One reads requests and handles them
// strictly in order; the other writes the connection's outbox. A request that
// needs a quorum (ENQUEUE, DONE, FAIL) reserves its place in the outbox and does
// not block the requests behind it, so that one connection can have a thousand
// of them pending and still receives its answers in order:
//
//	read ──▶ protocol rules ──▶ handler ──▶ outbox ──▶ write
//	         (overhop.Session)     │  ▲        ▲
//	                               ▼  │        │ QUEST, RECALL, CREDITS, …
//	                             Session     Server (dispatches, leases)
//	                             (cluster)     ▲  │
//	                                     Start,│  │Offer,
//	                                      Stop │  ▼Report
//	                                        (Executor)
//
// Memory for requests is bounded over all connections: frames of more than 64
// KiB share one budget, and a connection whose frame does not fit into it is
// not read until it does. A frame that has begun must end in time, so that a
// slow client cannot block the others for long.
//
// A dispatch is held here from Start to its outcome:
//
//	reserved ──ACK──▶ running ──DONE, FAIL──▶ ended ──committed──▶ removed
//	   │                 │ BEAT extends its lease
//	   │ no ACK in 5 s,  │ lease expired: lost
//	   │ NACK,           │ deadline, cancelled: recalled, with a grace to end
//	   │ connection lost │ connection lost: nothing, until the lease expires
//	   ▼                 ▼
//	 never started     ended
//
// While a request is handled, the requests behind it on the same connection are
// not read. This time does not count against the leases of the worker
// ([stopwatch]).
//
// A lease belongs to the token, not to the connection: a worker that reconnects,
// to this node or another, continues its jobs. The new node has the dispatch
// moved and adopted by its agent; the old node is informed that the dispatch is
// superseded, and removes it.
//
// One lock, deliveries.mu, guards workers, subscriptions and dispatches, because
// they change together. It is held for a few map operations at a time and never
// while anything is encoded or written, or during calls to [Executor], with
// these exceptions: Adopt and WorkerLease, so that a dispatch cannot be stopped
// before it is registered here, and Stalled and Recovered, so that they are
// called in order. A connection's outbox has its own lock, which may be held
// when deliveries.mu is locked, but not the other way round.
package edge
