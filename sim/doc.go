// Package sim runs whole yards in a time of their own and breaks them by the
// throw of dice that can be thrown again.
//
// Everything that decides is the real thing: each node has its own
// [ledger.Ledger], [scheduler.Scheduler] and [agent.Agent], goroutines and all.
// What they stand on is played: agreement, lanes, history, the messages between
// nodes, and the workers. All of it happens in a bubble of testing/synctest, so
// that ten seconds without an authority take no longer than it takes to think
// about them.
//
// One seed is one story. Whatever is played asks [yard.dice] how long it takes and
// whether it goes wrong, and the answer depends on the seed, on what is asked
// and on when; never on who asked first. Things happen one at a time: the next
// begins when every goroutine has nothing left to do. So goroutines may run in
// any order between two of them and the story is the same, which a test checks.
//
// A run has two modes. Until the yard is healed it must be safe: no job lost, no
// outcome twice, no two copies of a job under a lease, no limit exceeded, nothing
// of an older epoch, history without holes, keys and ticks as they were promised.
// From then on it must also be live: within a bounded time every accepted job has
// ended and nothing is complained of. In some stories one node stays broken all the
// while, and the other two have to do; in some a lane has lost its end, which has
// to be told before it comes back.
//
// What a disk has acknowledged it keeps: agreement and streams fsync before they
// answer, which drills hold real nodes to. What it may lose are entries and
// snapshots that were under way.
//
// A [Plan] is a seed and what is left out of its story. [Shrink] finds, for a
// story that fails, the least that still does.
package sim
