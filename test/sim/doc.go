// Package sim is a deterministic simulation of whole clusters under faults.
//
// The code that makes decisions is the product's: each node has its own
// [ledger.Ledger], [scheduler.Scheduler], [operations.Runner], [index.Index] and
// [agent.Agent], with all their goroutines. The simulation replaces what they depend on:
// Raft, the lanes and history streams, the messages between nodes, and the workers. An
// index may stall for seconds, and lose its files when its process starts again. The
// simulation runs in a bubble of testing/synctest, so that waiting takes no real time.
//
// A seed determines a run completely. Every simulated part asks [simulation.random]
// how long an operation takes and whether it fails. The answer depends on the seed,
// the operation and the time, and not on the order of the questions. Events happen
// one at a time: the next one starts when all goroutines are blocked. Goroutines may
// run in any order between two events and the run is still the same, which a test
// verifies.
//
// A run has two phases. Until the cluster is healed it must be safe: no job is lost,
// no outcome counts twice, no job runs twice at a time under a lease, no limit is
// exceeded, no command of an older epoch takes effect, history has no gaps, and keys
// and ticks behave as documented. Operations change each job at most once, none while
// they are paused, and count what they change. The jobs that one may change, and those that
// it must have changed when it is done because they have matched all the time, are those of a
// scan of the ledger at its start. After that it must also be live: within a bounded
// time every accepted job and operation has ended and the authority reports no condition. In some
// runs one node stays broken to the end, and the other two have to manage; in some
// a lane is truncated, which the authority has to report before the simulation
// restores the lane.
//
// Most runs have faults for 12 seconds and jobs of at most 9; a few long ones have faults
// for 40 seconds and jobs of up to 30. Faults come alone or composed: a node crashes
// while it is cut off, authorities are paused while they hand over. Package lean, below
// this one, has no faults, and runs a yard for a year.
//
// What a disk has acknowledged is never lost: Raft and streams fsync before they
// answer, which the drills verify with real nodes. Unacknowledged entries and
// snapshots may be lost.
//
// A [Plan] is a seed and the parts of its run that are left out. [Shrink] finds, for
// a run that fails, the smallest plan that still fails.
package sim
