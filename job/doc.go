// Package job holds the nouns of work: what is to be done, who could do it,
// what was asked of whom, and how it ended.
//
// A [Spec] is what a producer writes: the JSON body of a record in a job lane.
// The node that reads the record turns it into a [Job], the facts that the
// ledger keeps; the body itself stays in the lane at the job's [Position].
// An [Offer] is room that a node announces, an [Assignment] is the authority's
// order to run one dispatch of a job there, and an [Outcome] says how that
// dispatch ended. [Policy] turns an outcome into a [Verdict].
//
//	Spec ──record──▶ Job ──placed on an Offer──▶ Assignment ──▶ Outcome ──Policy──▶ Verdict
//
// Everything here is a value. Nothing reads a clock, rolls dice, logs or
// starts a goroutine, so the ledger may use all of it while it replays.
package job
