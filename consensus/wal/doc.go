// Package wal is Raft's log on the disk: a write-ahead log in preallocated files, with
// one write and one fdatasync for each append.
//
// A directory has segments, named by an increasing number. A segment has a header with
// the index of its first entry, and frames, one for each append:
//
//	segment   magic, number, first index, size, checksum │ frame │ frame │ … │ zeros
//	frame     sectors of zeros in it, size, checksum of the payload, checksum of this header │ payload, padded
//	payload   entry, entry, …: index, term, time, type, extensions, data
//
// A segment begins where the one before it ends: entries from the first index of a
// segment on that an earlier segment has do not count. So the end of the log is removed
// by creating a segment, which is atomic. The same happens after an append that failed
// or was interrupted, so a file is never written twice at the same place. The beginning
// of the log is removed by removing whole segments. If only some entries of a segment
// are removed, they are back after a restart.
//
// [Open] reads all of the log. It drops a frame at the end that a power loss interrupted,
// which was never acknowledged, and refuses any other that is not complete: see
// interrupted. It reads the last segment from the disk, and not from memory: see refresh.
// Package consensus detects what no file can show by itself, such as a last segment that was
// removed or replaced by an older copy, or a last frame of which a whole sector has become
// zero.
package wal
