// Package diagnose explains why a job or a queue does not move.
//
//	this node's ledger ─┐
//	the authority ──────┼─▶ diagnosis ─▶ reasons ─▶ verdict, one sentence
//	all members ────────┘
//
// The ledger has pauses, limits, the order of jobs and how a job has ended. The
// authority adds what blocks placement, and each member its workers and runners. Both
// are asked at the same time, for at most [queryTimeout]: an explanation never waits for
// a node in trouble. What a node does not answer is a reason of its own, and an
// explanation without a quorum is marked as possibly outdated.
package diagnose
