// Package backup reads and writes the file that holds a whole yard. It is a tar
// archive of
//
//	ledger/00000001 …              the encoded ledger, in chunks
//	YARD_JOBS_0/00000001 …         each stream in JetStream's archive format
//	manifest.json                  the content, with a checksum of each part
//	manifest.sha256
//
// The file is written sequentially, chunk by chunk, because the size of a part is
// not known in advance; therefore the manifest comes last. A part that was
// interrupted is written again under another name, and the manifest names the one
// that counts.
//
// The ledger is saved first and the streams after it, so every stream is at least
// as recent as the ledger. Messages about decisions that the saved ledger
// does not contain are cut off when a stream is restored ([Trim]). Records of jobs
// that it does not contain are kept, and ingested again.
//
// [Verify] checks a file without access to a yard.
package backup
