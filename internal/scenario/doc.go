// Package scenario plays what becomes of jobs at RRQ runners, written down as
// text, on a yard: whichever runner works there, and whatever dies meanwhile,
// the records are the same. It is for tests.
//
//	# One failure, and it is asked to run again at once.
//	> job once work {"function":"demo#retry","params":{"times":1,"after":0}}
//	? once
//	completed in work: attempts 2 of 3, result {"attempt":2}
//	ran: 1 2
//
// Lines with > do something; a refusal is written below them:
//
//	> job <name> <queue> [delay=300ms] <record>   enqueues under a fixed key
//	> active <name>                    waits until it runs
//	> waiting <name>                   waits until it waits, or is delayed
//	> cancel <name>
//	> requeue <name>                   its dead letter
//	> now                              here something dies, where something does
//	> queue <name> [<limit>]           makes a queue; pause and resume one
//	> inturn <names>                   they began in this order
//	> atonce <number> <names>          no more of them ran at once
//
// In a record, "xy*500" is a string of 500 xy. ? <name> waits for the job's end.
// What follows is its terminal record, without times, and what its runners
// witnessed: the attempt of each dispatch that reached one. ? <name>
// after=300ms also checks that no less time lay between acceptance and the
// last start; that a delayed job was not too early is always checked.
//
// Package sequential is the strictest runner there can be.
package scenario
