// Package client is the Go SDK of Yardmaster: it enqueues jobs, waits for their
// results, and runs workers. It talks to the worker port of any node (9876 by
// default) and imports nothing of the server.
//
// A program that enqueues connects once and shares the client:
//
//	c, err := client.Connect(ctx, client.Options{Nodes: []string{"10.0.0.1:9876", "10.0.0.2:9876"}})
//	id, err := c.Enqueue(ctx, client.Job{Queue: "mail", Function: "send", Params: Mail{To: "ann"}})
//	result, err := c.Wait(ctx, id)
//
// A worker registers a handler for each function of its queues:
//
//	w := c.Worker()
//	w.Handle("mail", "send", func(ctx context.Context, a *client.Attempt) (any, error) {
//		var m Mail
//		if err := a.Decode(&m); err != nil {
//			return nil, client.Permanent(err)
//		}
//		return send(ctx, m)
//	})
//	err := w.Run(ctx) // until ctx ends
//
// # Guarantees
//
// Once Enqueue returns a nil error, a quorum of the cluster has the job on disk
// and the job runs at least once. Enqueue with a Key is idempotent: the same key
// in the same queue is the same job, however often it is repeated. A handler may
// run more than once, after a crash for example, but only one outcome of a job
// counts. [Attempt.Fence] grows with every attempt, so a database can refuse
// writes of an attempt that has lost its lease.
package client
