// Package lean runs a whole yard in one process, so cheaply that a year with millions of
// jobs takes minutes.
//
// It is a [memyard.Yard]: every job is parsed, ingested, placed, assigned, started, settled,
// published and forgotten by the product's code, and every entry is applied by each member.
// Stored are only records, the large bodies and the owners of dead letters; of history and
// results only the numbers are kept. Streams have a size, and a record that does not fit is
// a failure of the run. The workers are of this package.
//
// The yard works in sessions, in a bubble of testing/synctest. In a session one member
// is the authority and all agents send heartbeats. Between two sessions nothing runs:
// the yard's time jumps, as if all of its processes had been suspended. Each session has
// another authority.
package lean
