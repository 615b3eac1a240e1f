// Package runnerscript runs scripted scenarios of jobs against the RRQ runners of
// a cluster and records how the jobs end. The record must be the same for every
// runner implementation, and with or without faults meanwhile. It is for tests.
//
//	# The job asks for one retry, without delay.
//	> job once work {"function":"demo#retry","params":{"times":1,"after":0}}
//	? once
//	completed in work: attempts 2 of 3, result {"attempt":2}
//	ran: 1 2
//
// Lines that begin with > are commands. If a command is refused, the refusal is
// recorded below it:
//
//	> job <name> <queue> [delay=300ms] <record>   enqueues under a fixed key
//	> active <name>                    waits until the job is active
//	> started <name>                   waits until the job is active or completed
//	> waiting <name>                   waits until the job is waiting or delayed
//	> cancel <name>
//	> requeue <name>                   requeues the job's dead letter
//	> quiet                            waits until no script has a job to cancel
//	> now                              injects the environment's fault, if any; quiet must precede it
//	> queue <name> [<limit>]           creates a queue; also: pause, resume
//	> inturn <names>                   checks the order of the first starts
//	> atonce <number> <names>          checks how many of the jobs ran concurrently
//
// In a record, "xy*500" is a string of 500 xy. ? <name> waits for the end of a
// job. Below it are the job's terminal record, without times, and the attempt of
// each dispatch that reached a runner. ? <name> after=300ms also checks the
// minimum time between acceptance and the last start. A delayed job that starts
// too early is always an error.
//
// Package sequential is the strictest runner the protocol allows.
package runnerscript
