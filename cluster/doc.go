// Package cluster runs this node's part of the yard's messaging: the embedded NATS
// server, the node's connections to it, and all streams and subjects.
//
// No other package knows a subject or the name of a stream. They use lanes,
// records, blobs, batches and nodes:
//
//	yard.jobs.<q> ──mapped on each node──▶ yard.lane.<n>.p.<q> ─┐
//	Publisher.Publish ───────────────────▶ yard.lane.<n>.n.<q> ─┴▶ YARD_JOBS_<n>
//	                                                                 │ Read, Load, Tail
//	yard.enqueue.<q> ──mapped──▶ yard.local.<node>.enqueue.<q>       ▼
//	                             (this node's Endpoints)       the authority
//
// [Start] starts the [Server]. What it does for other packages is divided by purpose:
//
//   - [Publisher] stores jobs.
//   - [Writer] stores blobs, batches and logs.
//   - [Reader] reads them.
//   - [Admin] creates, purges, archives and removes streams.
//   - [Replication] moves leaderships and replicas between members.
//   - [StallDetector] finds replicas on this node that do not catch up.
//   - [BoardStore] reads and writes boards.
//   - [Fleet] sends messages between nodes.
//
// # Lanes
//
// A lane is one replicated stream of accepted jobs. There are as many lanes as
// members, and each is led by a different member, so that losing one member does
// not stop intake: a node publishes to its own lane while that lane answers, and
// otherwise to another lane under the same idempotency key. Clients that publish
// directly to yard.jobs.<q> are routed the same way, by subject mappings that each
// node maintains for its own clients (see [Server.Run]). Only the stream itself
// may subscribe to a lane's subjects. Any other subscriber would hide the
// immediate "no responders" of a lane without a leader, and publishers would have
// to wait for a timeout instead.
//
// A lane is dense. Single records are never deleted, expired or discarded, so
// every sequence number between the first and the last record has its record. A
// hole is damage: it is reported as a [GapError] and never skipped.
//
// # Reads
//
// A direct read is answered by any replica, chosen at random, including one that
// was just stopped. A read therefore waits about 50 ms for its first message, asks
// again, and finally asks the stream's leader. A replica that answers "not found"
// proves nothing; only what was read counts.
//
// # Timeouts
//
// A publish is retried on another lane after 0.9 s and abandoned after
// Config.PublishTimeout, by default 1.8 s. It fails with [ErrUnknown] if one of
// its attempts may have been stored. A lane that refuses a job reports that
// immediately. JetStream needs 4 to 10 s to replace a dead leader, and no option
// shortens that; lanes hide it.
//
// # Trust
//
// Without configured users there is one account, YARD. The node's own connections
// are in-process and unrestricted. A client without a user name is an operator: it
// may read everything, enqueue and send requests, but may neither change the
// yard's streams nor publish on the subjects that nodes use among themselves. The
// server checks the permission to publish after it has mapped the subject, so
// permissions name mapped subjects. Users with a role live in a second account;
// see accounts.go.
package cluster
