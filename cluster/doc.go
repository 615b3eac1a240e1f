// Package cluster is the room of messages: the embedded NATS server, this
// node's connections to it, and every subject and stream by name.
//
// Nothing outside this package knows what a subject is. Others speak of lanes,
// records, blobs, tales and nodes:
//
//	yard.jobs.<q> ──mapped on each node──▶ yard.lane.<n>.p.<q> ─┐
//	Lanes.Publish ───────────────────────▶ yard.lane.<n>.n.<q> ─┴▶ YARD_JOBS_<n>
//	                                                                 │ Read, Load, Tail
//	yard.enqueue.<q> ──mapped──▶ yard.local.<node>.enqueue.<q>       ▼
//	                             (this node's Endpoints)       the authority
//
// # Lanes
//
// A lane is one replicated stream of accepted jobs. There are as many as
// members, each led by another node, so the death of one stops no intake: a
// node publishes to its own lane while that answers and goes on with another
// one, under the same idempotency key, when it does not. Plain publishers are
// steered the same way by subject mappings that each node keeps for its own
// clients (Run). Nobody but the stream itself may listen to a lane's subjects:
// one more listener would turn the immediate "nobody answers" of a leaderless
// lane into a silence.
//
// A lane is dense. Nothing in it is ever deleted singly, expired or pushed
// out, so between its first and its last record every sequence number has its
// record, and a hole is damage that [GapError] reports and nobody skips.
//
// # Who answers a read
//
// A direct read is answered by any replica, chosen at random, also by one that
// has just been stopped. So a read waits some 50 ms for its first message,
// asks again, and turns to the stream's leader in the end. "Not there" from a
// replica is never proof; only what is read counts.
//
// # Time
//
// A publish is repeated elsewhere after 2 s and given up after 15 s, with
// [ErrUnknown] if one of its tries may have been stored. A lane that refuses
// says so at once. JetStream takes 4 to 10 s to replace a dead leader, and no
// option shortens that: lanes are what hides it.
//
// # Trust
//
// One account, YARD. The node's own connections are in process and may do
// everything; a client that names no user is an operator, who may look at
// everything, enqueue and ask, but may neither change the yard's streams nor
// speak on the subjects nodes use among themselves. The server checks a
// publish after it has mapped its subject: permissions name the mapped ones.
package cluster
