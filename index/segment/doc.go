// Package segment keeps documents of jobs in immutable files and finds them by queries.
//
// A segment has at most [MaxDocuments] documents, in the order of their creation and ids. The
// place of a document in it is its number, so that the set of the documents that have a term is
// a bitmap of 8 KiB, and a condition of a query is a few operations on such sets. [Write]
// makes a segment of documents, [Open] opens one, and [Search] returns a page of the
// documents that match, in the order of a query, of segments and of a [Memory].
//
// A file consists of chunks, each followed by its CRC-32C, and a directory at the end:
//
//	documents   64 in a chunk, compressed
//	columns     numbers of 4096 documents in a chunk, each in the fewest bytes that hold the
//	            differences to the smallest one; the directory has smallest and largest
//	ids         256 in a chunk; and the numbers of the documents in the order of their ids
//	postings    of terms that more than 32 documents have: differences, or a bitmap
//	terms       sorted, about 4 KiB in a chunk, with the postings of the other terms
//	unions      postings of all documents that have one of the terms of a chunk, or of 16 chunks
//	directory   where the chunks are, and the first term of each
//
// A chunk is checked whenever it is read. If it is damaged, the error is an [ErrDamaged]: the
// file must be made again from what it was made of. Nothing is read by mapping the
// file into memory, because a disk that fails would then end the process.
package segment
