// Package rrq implements the RRQ runner protocol, version 2, both ends.
//
// A runner is a process that listens on one TCP socket on the loopback and runs
// handlers by name. A node connects to it and sends frames: a u32 big-endian
// length, then that many bytes of JSON, 1 byte to [MaxFrame].
//
//	node                                   runner
//	 │ {"type":"request","payload":{…}}      │
//	 ├──────────────────────────────────────▶│ runs the handler
//	 │      {"type":"response","payload":{…}}│
//	 │◀──────────────────────────────────────┤ exactly one answer
//	 │                                       │
//	 │ {"type":"cancel","payload":{…}}       │ on a connection of its own
//	 ├──────────────────────────────────────▶│ the request is then answered
//	 │                                       │ on its own connection
//
// [Conn] is the node's end. It has at most one request on a connection and
// reuses the connection for the next. This works with runners that read and
// write strictly in turn as well as with multiplexing ones, a malformed answer
// affects no other request, and closing the connection cancels exactly one
// request.
//
// [Serve] is a runner's end, for runners written in Go.
//
// Decoding is tolerant: unknown fields are skipped, and every optional field
// may be null or absent. Encoding is complete: every field is written. JSON of
// users (params, results, details) is passed through unchanged, so that
// integers are not rounded.
package rrq
