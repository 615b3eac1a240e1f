// Package job defines the values that describe work: what a producer asks for,
// which worker can run it, what a node was assigned, and how it ended.
//
// A [Spec] is what a producer writes: the JSON body of a [Record], one message
// of a lane. The authority turns each record into a [Job], the small set of
// facts that the ledger keeps; the body stays in the lane, at the job's
// [Position]. An [Offer] is capacity that a node announces, an [Assignment] is
// the authority's order to run one dispatch of a job there, and an [Outcome] is
// how that dispatch ended. A [Policy] turns an outcome into a [Verdict].
//
//	Spec ──record──▶ Job ──placed on an Offer──▶ Assignment ──▶ Outcome ──Policy──▶ Verdict
//
// The package is pure: it reads no clock, uses no randomness, does not log and
// starts no goroutines, so the ledger may use all of it during replay.
package job
