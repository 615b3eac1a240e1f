// Package timeline rebuilds the state of a yard at any point from its history, independently of
// the ledger: it folds the events of the messages of YARD_EVENTS, in the form that
// docs/reference/contract.md describes. It shares no code with the ledger, so that a mistake of
// one is found by comparing both. It imports no other package of this module.
//
// A [State] takes memory for queues, limits, cron entries and running jobs, not for jobs that
// wait or have ended: each event says where its job was before.
package timeline
