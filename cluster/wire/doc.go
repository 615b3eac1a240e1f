// Package wire encodes the messages between nodes.
//
// A message begins with its version. Numbers are varints, strings and byte slices
// have a length prefix, and a time is encoded as Unix nanoseconds. There is no
// reflection and no schema: each message has one function that writes it and one
// that parses it, field by field in the same order.
//
// Parsing never panics and never allocates more than the message could hold,
// whatever its bytes are; bytes after the last field are an error. Bodies are not
// copied: they share the message's memory, which the receiver must not change.
package wire
