// Package drill breaks yards of real processes and judges what is left.
//
// A [Drill] says what it breaks and what is promised; [Play] gives it a [Stage]
// and reports what came of it. The stage is a [Yard], nodes of the built binary
// that may be killed, stopped, cut off and started again, on this host's
// loopback or each on a host of its own ([Plan]). A [Load] publishes jobs as any
// program would and repeats, under the same key, what was not acknowledged.
// Workers are processes too ([Work]); each writes what it begins and ends to a
// file of its own, on disk before the job's end is told. The [Verdict] compares
// three things that know nothing of each other: the keys that were acknowledged,
// what the yard says of each job and in its history, and what the witnesses saw.
//
//	acknowledged ⊆ ended, each once · one outcome a dispatch · every completed
//	job witnessed · never more at once than a queue's limit · history dense,
//	and what the nodes show · ledgers equal
//
// The drills themselves are in drill/catalogue.
package drill
