// Package yardtest runs a whole yard inside a test, in virtual time: members, authority,
// leases, retries, delays and cron entries, without ports, files or waiting.
//
//	func TestMail(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			y := yardtest.New(t)
//			c := y.Client()
//			w := c.Worker()
//			client.Handle(w, deliver) // a func(context.Context, *client.Job[SendMail]) (Sent, error)
//			y.Work(w)
//
//			id, err := client.Enqueue(t.Context(), c, SendMail{To: "ann"})
//			y.ExpectEnqueued(SendMail{To: "ann"})
//			y.Drain()
//			if job := y.Jobs("mail")[0]; job.State != "completed" { … }
//		})
//	}
//
// # The same rules
//
// The ledger, the scheduler, the agents, the Overhop server and the client are those of the
// product. In memory are only Raft, the streams and the connections. So a test sees what a
// yard does: a job that fails is retried by its policy, a lost worker's job starts elsewhere
// with a higher fence once the lease is over, and a new authority takes over within seconds
// when the last one is killed. There are no runners, no logs of jobs, and no faults of disks or
// networks.
//
// A test that imports this package therefore compiles most of a node, with NATS and Raft: about 360
// packages of 30 modules, where the client alone needs 10 modules. Only the first build takes that time.
// A program that imports package client does not compile the node.
//
// # Time
//
// Time is that of the bubble of package testing/synctest: it stands still while a goroutine
// of the test works and jumps when all of them wait. A call to the yard takes no time, and a
// job needs some to start. So jobs that a test enqueues wait until it lets time pass: by
// [Yard.Drain], [Yard.Advance] and [Yard.RunOne], by waiting for a result, or by time.Sleep.
//
// An hour in which nothing happens takes about a tenth of a second. Handlers must wait for
// time, channels and the like only: in a bubble, time stops while a goroutine waits for a
// socket, a process or a mutex.
//
// # Randomness
//
// Nothing depends on the clock of the machine, members take over in turn, and clients connect
// to the members in turn. The ids of jobs are random unless the test has the option [Seed], and
// goroutines that are ready at the same instant run in any
// order: jobs that may run at once have no order.
package yardtest
