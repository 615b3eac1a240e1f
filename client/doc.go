// Package client is the Go SDK of Yardmaster: it enqueues jobs, waits for their results,
// runs workers, and shows and changes what the cluster has. It talks to the worker port of
// any node (9876 by default), or to the cluster's NATS servers.
//
// # Jobs
//
// A job is a value of a type of its own. Kind names the function that runs it:
//
//	type SendMail struct {
//		To string `json:"to"`
//	}
//
//	func (SendMail) Kind() string { return "send_mail" }
//
// A program that enqueues connects once and shares the client:
//
//	c, err := client.Connect(ctx, "10.0.0.1:9876", "10.0.0.2:9876")
//	id, err := client.Enqueue(ctx, c, SendMail{To: "ann"}, client.Key("welcome-ann"))
//	sent, err := client.Await[Sent](ctx, c, id)
//
// A worker has a handler for each type:
//
//	w := c.Worker()
//	client.Handle(w, func(ctx context.Context, job *client.Job[SendMail]) (Sent, error) {
//		return deliver(ctx, job.Args.To)
//	})
//	err := w.Run(ctx) // until ctx ends
//
// A type that also names its result, as [ArgsOf] shows, is enqueued and awaited by [Do].
//
// [Client.Enqueue] and [Worker.Handle] are the same for jobs of any params.
//
// # Guarantees
//
// Once Enqueue returns a nil error, a quorum of the cluster has the job on disk and the job
// runs at least once. Enqueue with a [Key] is idempotent: the same key in the same queue is
// the same job, however often it is repeated. A handler may run more than once, after a
// crash for example, but only one outcome of a job counts. [JobInfo.Fence] grows with every
// attempt, so a database can refuse writes of an attempt that has lost its lease: see
// package client/sqlfence. Package client/outbox enqueues jobs in database transactions.
//
// # Errors
//
// The refusal of a request is an [*Error]. errors.Is compares it with its kind, such as
// [ErrNotFound] or [ErrConflict]. Requests are repeated, at other nodes if need be, while
// the cluster is unavailable, until their context ends: give it a deadline.
package client
