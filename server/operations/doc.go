// Package operations carries out actions on all jobs that match a query: it answers the
// requests about operations, and runs them on the node that holds the authority.
//
// The ledger holds an operation with its cursor, see [ledger.Operation]. A [Runner] reads a
// page of jobs after the cursor from the node's index, compares them with the ledger, and
// proposes one step, which changes the jobs and moves the cursor. Should the node die, the
// next authority continues at the cursor.
//
// Jobs that the ledger has forgotten, and those that get other params, become new jobs. That
// cannot be a part of the step. A new job has an id that is derived from the dead letter, so that a
// page that is read again makes no second one. Dead letters are removed after the step.
package operations
