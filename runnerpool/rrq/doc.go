// Package rrq speaks the RRQ runner protocol, version 2, both ends.
//
// A runner is a process that binds one TCP socket on the loopback and runs
// handlers by name. Whoever started it connects and sends frames: a u32
// big-endian length, then that many bytes of JSON, 1 byte to [MaxFrame].
//
//	yard                                   runner
//	 │ {"type":"request","payload":{…}}      │
//	 ├──────────────────────────────────────▶│ runs the handler
//	 │      {"type":"response","payload":{…}}│
//	 │◀──────────────────────────────────────┤ exactly one answer
//	 │                                       │
//	 │ {"type":"cancel","payload":{…}}       │ on a connection of its own
//	 ├──────────────────────────────────────▶│ the answer to the request then
//	 │                                       │ comes where the request came in
//
// [Conn] is the yard's side. It keeps at most one request on a connection and
// reuses the connection for the next: that is within the reach of a runner
// that reads and writes strictly in turn, it matches what the multiplexing
// runtimes accept, it keeps one malformed answer from hurting any other
// request, and closing the connection cancels exactly one request.
//
// [Serve] is a runner's side, for runners written in Go.
//
// Reading is tolerant: unknown fields are skipped, every optional field may be
// null or absent. Writing is complete: every field is always there. JSON that
// belongs to users (params, results, details) passes through byte by byte, so
// no integer is rounded on its way.
package rrq
