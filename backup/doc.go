// Package backup is the file that a whole yard is saved in: a tar archive of
//
//	ledger/00000001 …              the ledger, encoded, in pieces
//	YARD_JOBS_0/00000001 …         each stream as JetStream copies it out
//	manifest.json                  what is in it, with a sum for each part
//	manifest.sha256
//
// It is written in one go, piece by piece, because nobody knows how large a
// part will be before it is there; so the manifest comes last. A part that was
// interrupted is begun again under another name, and the manifest tells which
// counts.
//
// The ledger is taken first and the streams after it, so no stream is older
// than what the ledger says of it. What the streams hold beyond the ledger is
// cut off where it tells of decisions that the ledger does not know ([Trim]),
// and stays where it is work: those records are folded again.
//
// [Verify] reads a file without any yard.
package backup
