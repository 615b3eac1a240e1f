// Package wire writes what nodes say to each other as compact bytes.
//
// A message begins with its version. Numbers are varints, texts and bytes
// carry their length, a time is its Unix nanoseconds. There is no reflection
// and no schema: each message has one function that writes it and one that
// reads it, field by field in the same order.
//
// Reading never panics and never reserves more than the message could hold,
// whatever the bytes are; what is left over after the last field is an error.
// Bodies are not copied: they share the message they came in, which the
// receiver must not change.
package wire
