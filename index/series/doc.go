// Package series counts what happened to jobs in the last 24 hours: how many were accepted, started
// and ended in each slot of time, how long they waited and ran, and with which errors attempts
// failed; in all and by queue. It also keeps what operators did and how the authority changed.
//
// A [Series] is a fold of the ledger's transitions, entry by entry, in the ledger's time. It reads
// no clock, so every node that has folded the same entries has the same series. The memory that it
// takes is bounded, see [Series].
package series
