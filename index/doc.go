// Package index finds jobs by queries, also those that the ledger has forgotten.
//
// A node's index reads the changes of its ledger ([ledger.ChangeList]). It is a projection: it can be
// deleted, and is then made again from what the ledger has, and for jobs that the ledger has forgotten
// from the history and the dead letters.
//
// An ended job has a complete document. A job that has not ended has a document of what does not
// change any more: its names, labels, and the error of its last attempt. The rest is read from the
// ledger when a query finds it, so that a job is written once when it waits and once when it has ended,
// or only once if it runs at once.
//
// New documents are in memory, and in a spool: a file that is only read when the index is opened.
// When there are many, they become segments (package segment), one of jobs that have ended and
// one of the others. A segment of jobs that have not ended is written again, or removed, as its
// jobs end. The file manifest.json lists the segments, and the first spool to read.
//
//	spool-12         blocks of documents, places of deleted documents, and marks
//	ended-7, live-9  segments
//	ended-7.deleted  which documents of the segment are deleted
package index
