// Package edge is the Overhop server of one node: the door for TCP workers and
// producers, and the hands that run the yard's jobs at those workers.
//
// Every connection has two goroutines. One reads requests and handles them
// strictly in order; the other writes whatever lies in the connection's
// outbox. A request that a quorum has to answer (ENQUEUE, DONE, FAIL) holds
// its place in the outbox and does not stop the next one from being read, so
// one connection can have a thousand of them under way and still gets its
// answers in order:
//
//	read ──▶ rules of order ──▶ handler ──▶ outbox ──▶ write
//	         (overhop.Session)     │  ▲        ▲
//	                               ▼  │        │ QUEST, RECALL, CREDITS, …
//	                             Session     Server (dispatches, leases)
//	                             (the yard)    ▲  │
//	                                     Start,│  │Offer,
//	                                      Stop │  ▼Report
//	                                         (Hands)
//
// The door itself may ask for more: TLS, whose handshake is the reading
// goroutine's first work and has the time of a HELLO; a client certificate; a
// token in HELLO, without which REGISTER is refused. Certificates are read again
// when their files change. Who comes over a limit is closed unheard.
//
// What clients send is bounded for all of them together: frames of more than 64
// KiB share one budget, and a connection whose frame finds no room in it is not
// read from until there is. A frame that has begun must end in time, so that
// nobody keeps the others waiting for long.
//
// A dispatch lives here from Start to its outcome:
//
//	reserved ──ACK──▶ running ──DONE, FAIL──▶ ended ──committed──▶ forgotten
//	   │                 │ BEAT extends its lease
//	   │ no ACK in 5 s,  │ lease over: lost
//	   │ NACK,           │ deadline, cancelled: recalled, with a grace to end
//	   │ connection lost │ connection lost: nothing, until the lease is over
//	   ▼                 ▼
//	 never started     ended
//
// A worker is not heard while its connection is not read, because a request of
// it holds those behind it up. Its leases stand still then ([stopwatch]).
//
// The token proves the lease, not the connection: a worker that comes back
// over another connection, here or at another node, goes on with what it has.
// The node it comes to has the dispatch moved, and adopted by its agent; the
// one it left is told that it is superseded, and forgets it.
//
// Leases and progress are this node's memory only; the yard hears of a
// dispatch when it ends. Other nodes ask for them when somebody looks at a job
// ([Server.Running]).
//
// One lock, Server.mu, guards workers, subscriptions and dispatches, because
// they change together; it is held for some map operations at a time and never
// while something is encoded, written, or told to the other rooms, except that
// they adopt a dispatch, which must not be stopped before it is here, and that
// they hear of workers that stall and recover, in that order. A connection's
// outbox has its own lock, which may be taken first.
package edge
