// Package runnerpool keeps pools of RRQ runners on one node: processes in any
// language, each with its own port, that run jobs, one request at a time per
// slot.
//
//	Pools ── pool "python" ──┬── member 0 ── process on :9000 ── slot, slot
//	      │                  └── member 1 ── process on :9001 ── slot, slot
//	      └─ pool "go" ─────── member 0 ── process on :9100 ── slot
//
// A member is a place in a pool. It starts its process, waits until the process
// itself listens on the member's port, offers its slots, and starts another
// process when that one ends:
//
//	      spawn           listens            exits, or had to be killed
//	down ──────▶ starting ───────▶ up ──────────────────────────────────▶ down
//	  ▲              │ exits, does not listen, or the port is taken          │
//	  └──────────────┴───────────────── backoff ◀───────────────────────────┘
//
// Five exits within a minute without an answer in between are a crash loop: the
// delays grow to half a minute, and a process must live for some seconds before
// it is offered again.
//
// # One dispatch
//
// A slot has one connection to its process and runs one dispatch at a time. A
// dispatch that must end early, because of its deadline, a recall or the end of
// the node, is stopped in steps: a cancel frame, a wait for the answer, the end
// of the connection, SIGTERM to the process group, SIGKILL. The outcome is
// reported only when the handler is known to have stopped, so that a retry never
// runs concurrently with it. The other requests of a process that must be killed
// have the term grace to finish; then they are lost with it, and their attempts
// do not count.
//
// # Output
//
// Every line that a process prints goes to the node's log, and to the log of the
// job that printed it: see jobLog. Everything printed before an outcome is in the
// job's log before the outcome is reported.
//
// # Orphans
//
// Every process leads its own process group, is started by one thread that lives
// as long as the pools, and dies with it (PDEATHSIG): kill -9 of the node leaves
// no runner. Processes that a runner forked could survive that. A warden, a
// process that notices the end of the node by the end of a pipe, kills them at
// once. If the warden is gone too, the node does so at its next start, using a
// file in which it records its process groups. The node itself must not be
// process 1 of a container.
package runnerpool
