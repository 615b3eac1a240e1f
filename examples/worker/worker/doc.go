// Package worker is an example Overhop worker. It is also the worker of the
// yardmaster program and of its demo.
//
// A worker subscribes to queues and states how many jobs of each it runs at
// once, its credits. The yard then pushes jobs; the worker acknowledges them,
// sends heartbeats while they run, and reports how they ended. All of that is
// done by [overhop.Worker]. What remains to be written is a handler:
//
//	func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error)
//
// Rules for handlers, in any language:
//
//   - A job may run twice: after a lost connection or the death of a node the
//     yard sends it to another worker. Make its effect idempotent, or let your
//     database refuse a q.Fence lower than one it has seen for the same job.
//   - When ctx ends, the job may already be running elsewhere: stop.
//   - An error means that the job may be retried; [overhop.FailError] gives
//     more control.
package worker
