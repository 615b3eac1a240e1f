// Package bench measures a yard, and beside it the floors that it stands on,
// in one run on one machine, so that their ratios mean something on any.
//
// A floor is what remains if everything that makes a yard of its parts is left
// out: a stream that is only published to, a Raft group whose entries mean
// nothing, and the work queue that somebody would write by hand on the same
// streaming server, without job states, retries or limits. Under what a node
// answers from memory lies a TCP echo of as many bytes.
//
// Everything but the load runs in separate processes of the program itself:
// nodes as users start them ([yardmaster/drill/yard]), and for the floors
// peers ([Peer]), each a bare NATS server and a bare Raft voter. All of them
// write to disk before they answer. The load and the Overhop workers run in
// the measuring process, and so take their share of the same processors.
//
// # What a figure says
//
// A rate counts jobs from the first call until the last of them is settled: a
// worker has run it and has heard that its end is committed. What is accepted
// and not settled makes the whole run fail. A latency is taken in an open
// loop: calls are due at fixed times, whether earlier ones were answered or
// not, and what is measured begins when the call was due, not when the load
// came round to making it.
//
// Where a node is killed a job may run more than once; it counts once, at its
// first start and its first end, and none may be missing.
//
// Each figure is measured in several rounds; its value is their median. Figures
// of one measurement, such as a time to 95 % and a time to all, share its
// rounds. A figure brings the floors along that it is compared with, whatever
// was asked for.
package bench
