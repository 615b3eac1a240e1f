// Package cli is the yardmaster command line: what a person types.
//
// There are three groups of verbs. The first starts something that runs until
// it is told to stop (node, runner, worker) or shows the yard off (demo). The
// second changes the yard's work (enqueue, job, queue, exec), the third looks
// at it (status, health, snapshot, events, schema). The last two talk to any
// node over NATS, by the same requests that every NATS program may send; the
// command line knows no secret way in.
//
// With --state-dir, exec and snapshot ask nobody: cli/statedir keeps the runtime
// contract in a directory.
//
// Conventions, so that scripts may rely on them:
//
//   - What was asked for goes to standard output, everything else to standard
//     error. With --json the output is the yard's own answer, indented.
//   - An error is one line: "yardmaster: <what was wrong>; <what to do>".
//   - The exit code is 0 when it was done, 1 when it was not, 2 when the
//     command line could not be understood. Of a state directory's verbs
//     other programs expect 1 and the contract's texts as they are.
//   - Times are shown in UTC, because a yard's nodes may not share a zone.
//   - The server and its credentials come from what NATS' own tools read: the
//     variables NATS_… and contexts; docs/connecting.md says in which order.
package cli
