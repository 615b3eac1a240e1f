// Package drill breaks yards of real processes and judges what is left.
//
// A [Yard] is three nodes of the built binary on this host, each a process
// that a drill may kill, stop and start again. A [Load] publishes jobs as any
// NATS program would and repeats, under the same key, what was not
// acknowledged. Workers are processes too ([Work]); each writes what it begins
// and ends to a file of its own, on disk before the job's end is told. The
// [Verdict] compares three things that know nothing of each other: the keys
// that were acknowledged, what the yard says of each job and in its history,
// and what the witnesses saw.
//
//	acknowledged ⊆ ended, each once · one outcome a dispatch · every completed
//	job witnessed · never more at once than a queue's limit · history dense
package drill
