// Package drill injects faults into clusters of real processes and judges the
// result.
//
// A [Drill] states what it breaks and what is promised nevertheless. [Play] runs it
// on a [Harness] and returns a report. The harness has a [Cluster]: nodes of the
// built binary that can be killed, stopped, cut off and restarted, on this host's
// loopback or each on a simulated host ([Layout]). A [Load] publishes jobs as any
// program would, and repeats under the same key what was not acknowledged.
// Workers are processes too ([Work]). Each records the begin and end of every job
// in a witness file, synced before it reports the outcome. The [Verdict] compares
// three independent sources: the keys that were acknowledged, the state and
// history of the jobs in the cluster, and the witness files. It checks that
//
//   - every acknowledged job has ended, once;
//   - every dispatch has at most one outcome;
//   - every completed job was run by a worker;
//   - no more jobs of a queue ran concurrently than its limit allows;
//   - history has no gaps and agrees with the state of the nodes;
//   - the ledgers of all nodes are equal.
//
// The drills themselves are in test/drill/catalogue.
package drill
