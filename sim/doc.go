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
// of an older epoch, history without holes. From then on it must also be live:
// within a bounded time every accepted job has ended and nothing is complained of.
package sim
