// Package worker is an example Overhop worker, which the yard's own command
// line and its demo use too.
//
// A worker says which queues it serves and how many jobs it will hold at once
// (its credits). The yard then pushes jobs; the worker acknowledges, beats
// while it works, and tells each job's end. All of that is done by
// [overhop.Worker]; what is left to write is a handler:
//
//	func(ctx context.Context, q *overhop.Quest) (overhop.Raw, error)
//
// Rules for handlers that hold in every language:
//
//   - A job may run twice: after a lost connection or a killed node the yard
//     gives it to somebody else. Make the effect repeatable, or let your
//     database refuse a lower q.Fence than it has seen for the same job.
//   - When ctx ends, the job is no longer yours: stop.
//   - Numbers of the params that have a fraction, or more than 64 bits, arrive
//     as decimal text ("0.5"): Overhop's wire has no floats.
//   - An error means "try again later"; [overhop.FailError] says more.
package worker
