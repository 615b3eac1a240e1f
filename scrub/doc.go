// Package scrub finds out whether what a node's disk holds of the yard's streams
// is what the other copies hold.
//
// JetStream looks at a record's checksum when it loads the record from the disk,
// and then leaves it out; nothing compares copies, so that damage waits for the
// day when the sound ones are gone. So each node regularly reads its copies, past
// its server's memory: every record's checksum; that no sequence is missing where
// none may be; and that the others have the same under the same sequence. For the
// last, sums of [ChunkSize] sequences are exchanged, and only where those differ
// single messages.
//
// A node judges its own copy alone. It is wrong where a majority of three has
// another message, and wherever it has nothing readable and another copy has.
// Where two differ and no third is heard, nobody is right: that is said, and
// nothing follows from it. Whatever seems wrong is read a second time, behind a
// pause, before it is told: a copy may lag, and a beginning may be purged.
package scrub
