// Package runnerpool keeps pools of RRQ runners on one node: processes of any
// language, one port each, that run jobs one request at a time per slot.
//
//	Pools ── pool "python" ──┬── member 0 ── process on :9000 ── slot, slot
//	      │                  └── member 1 ── process on :9001 ── slot, slot
//	      └─ pool "go" ─────── member 0 ── process on :9100 ── slot
//
// A member is a place in a pool. It starts its process, waits until the
// process itself listens on the member's port, offers its slots, and begins
// again when the process ends:
//
//	      spawn           listens            exits, or had to be killed
//	down ──────▶ starting ───────▶ up ──────────────────────────────────▶ down
//	  ▲              │ exits, silent, or a stranger on the port              │
//	  └──────────────┴───────────────── backoff ◀───────────────────────────┘
//
// Five ends within a minute with no request answered in between are a crash
// loop: the pauses grow to half a minute, and a process must have lived for
// some seconds before it is offered again.
//
// # One dispatch
//
// A slot owns one connection to its process and runs one dispatch at a time.
// What ends it early, be it the hard deadline, a recall or the end of the
// node, takes the same ladder: a cancel frame, a pause for the answer, the end
// of the connection, SIGTERM to the process group, SIGKILL. The outcome is
// told when the handler is known to have stopped, so that a successor never
// runs beside it. Other requests of a process that must be killed get the term
// grace to finish; then they are lost with it and their attempts given back.
//
// # What a runner says
//
// Every line that a process prints goes to the node's log, and to the log of
// the job that says it: see voices. Before an outcome is told, all that was
// printed before it has found its job.
//
// # Nothing is left behind
//
// Every process leads a group of its own, is born by one thread that lives as
// long as the pools, and dies with it (PDEATHSIG), so that not even kill -9 of
// the node leaves a runner. What a runner forked could survive that: a warden,
// a process that hears of the node's end by the end of a pipe, ends it at once,
// and should the warden be gone too, the node does so at its next start, by the
// list of its groups that it keeps in a file. The node itself must not be process 1 of a container.
package runnerpool
