// Package memyard runs the core of a yard in memory, in one process: each member's
// [ledger.Ledger], [scheduler.Scheduler] and [agent.Agent] are the product's. In memory and
// without faults are consensus, the streams and the messages between members. What runs
// the jobs, [agent.Target], is up to the user of the package.
//
// A member can be stopped or killed at any time and started again, and one of them after
// the other leads. All waiting is for channels, conditions and timers, so that a yard can
// run in a bubble of testing/synctest, in virtual time. The clock is package time's.
//
// Packages client/yardtest and test/sim/lean are built on it.
package memyard
