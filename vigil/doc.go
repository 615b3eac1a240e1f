// Package vigil is a node's watch over itself: whether it is fit to take jobs in
// and to hold the authority, and what follows if it is not.
//
//	checks (disk, JetStream, routes, lanes) ─▶ ailments ─▶ word ─▶ other members
//	                                              │                   │
//	                 intake closed, with a reason ┘     hand over to one who is fit
//
// Each second the keeper asks its checks, says what it found to the other
// members, and hears what they found. Members hear each other by a way that
// works when NATS does not, because that is what is in question.
//
// What a node refuses follows from three facts: its own room on the disk, how
// many members have room (a record needs a majority of disks), and whether it
// holds the authority. Whoever holds it and has been unfit for some seconds hands
// it to a member that says it is fit, and not again before a minute has passed.
package vigil
