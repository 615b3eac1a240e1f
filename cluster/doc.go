// Package cluster runs this node's part of the yard's messaging: the embedded NATS
// server, the node's connections to it, and all streams and subjects.
//
// Other packages use lanes, records, blobs, batches and nodes:
//
//	yard.jobs.<q> ──mapped──▶ yard.local.<node>.jobs.<q> ──▶ yard.lane.<n>.p.<q> ─┐
//	                                   │                                          │
//	Publisher.Publish ─────────────────┴────────▶ yard.lane.<n>.n.<q>, yard.lane.<n>.n._ ─┴▶ YARD_JOBS_<n>
//	                                                                 │ Read, Load, Tail
//	yard.enqueue.<q> ──mapped──▶ yard.local.<node>.enqueue.<q>       ▼
//	                             (this node's Endpoints)       the authority
//
// A lane is one replicated stream of accepted jobs, one or more in a message. There are as many lanes as members,
// and each is led by a different member, so that losing one does not stop intake.
//
// [Start] starts the [Server], which has one part for each purpose:
//
//   - [lanes.Publisher] stores jobs.
//   - [streams.Writer] stores blobs, batches and logs.
//   - [streams.Reader] reads them.
//   - [streams.Admin] creates, purges, archives and removes streams.
//   - [streams.BoardStore] reads and writes boards.
//   - [replication.Replication] moves leaderships and replicas between members.
//   - [replication.StallDetector] finds replicas on this node that do not catch up.
//   - [Fleet] sends messages between nodes.
//
// They share the node's server and connections, an [embedded.Server], and the names in
// package subjects. [Client] is the connection of other programs.
package cluster
