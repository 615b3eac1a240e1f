// Package bench measures a cluster and, in the same run on the same machine, the
// floors below it, so that their ratios can be compared between machines.
//
// A floor is the same work without Yardmaster: a stream that is only published to,
// a Raft group with an empty state machine, and a simple work queue on the same
// NATS server, without job states, retries or limits. The floor of a request that a
// node answers from memory is a TCP echo of the same number of bytes.
//
// Everything but the load runs in separate processes of the program itself: nodes
// as users start them ([yardmaster/internal/procs]), and for the floors peers
// ([Peer]), each a bare NATS server and a bare Raft voter. All of them sync to disk
// before they answer. The load and the Overhop workers run in the measuring process
// and share the processors.
//
// # Figures
//
// A rate counts jobs from the first call until the last job is settled: a worker has
// run it and has been told that its outcome is committed. If an accepted job is not
// settled, the whole run fails. A latency is measured in an open loop: calls are due
// at fixed times, whether or not earlier ones were answered, and the latency starts
// when the call was due, not when it was made.
//
// If a node is killed, a job may run more than once. It counts once, with its first
// start and its first end, and none may be missing.
//
// Each figure is measured in several rounds; its value is their median. Figures of
// the same measurement, such as the times until 95 % and until all, share its
// rounds. The floors that a figure is compared with are always measured with it.
//
// # Other systems
//
// [RunSystems] compares job systems, among them Yardmaster and the work queue of the
// floors, each used through the Go client that its users have. Those that need other
// programs and modules are in the module test/benchpeers.
package bench
