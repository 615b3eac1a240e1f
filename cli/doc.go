// Package cli is the yardmaster command line.
//
// The verbs form three groups. The first starts processes (node, worker,
// runner, demo). The second manages jobs, queues and the yard
// (enqueue, job, queue, cluster, exec and others). The third inspects the yard
// (status, health, snapshot, events, schema). The verbs of the last two groups
// send the same NATS requests that any other client may send; the command line
// has no private interface to a node.
//
// With --state-dir, exec and snapshot use no node: package cli/statedir keeps
// the state of the runtime contract in a directory.
//
// Conventions that scripts may rely on:
//
//   - The requested data goes to standard output, everything else to standard
//     error. With --json the output is the node's reply, indented.
//   - An error is one line: "yardmaster: <what failed>; <what to do>".
//   - The exit code is 0 on success, 1 on failure, and 2 if the command line
//     is invalid. The verbs of a state directory always fail with 1 and with
//     the contract's error texts, because other programs compare them.
//   - Times are shown in UTC, because the nodes of a yard may be in different
//     time zones.
//   - The server address and the credentials come from the sources that the
//     nats CLI reads: the NATS_… variables and contexts. docs/reference/cli.md
//     lists their order.
package cli
