// Package structpack encodes Go values as compact MessagePack: the entries of the
// Raft log and the messages between nodes.
//
// A struct is encoded as the array of its fields in order, without zero fields at
// its end: a field may be appended, but never removed or moved. An array that is
// longer than the struct was written by a newer release and is refused, because its
// additional fields would be lost on this member only. Fields with the tag
// `msgpack:"-"` are left out. Times are Unix nanoseconds in UTC, ids are 16 bytes,
// and nil differs from empty.
//
// The package does not use msgpack/v5, which takes three to five times as long and
// cannot decode an array that is shorter than the struct (ADR 37). Fields are read and
// written at their addresses, because reflection takes longer than their encoding.
//
// Decoding never panics and never allocates much more than the input could hold,
// whatever its bytes are.
package structpack
