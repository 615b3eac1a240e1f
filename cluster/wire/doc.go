// Package wire encodes the messages between nodes.
//
// A message is a byte with its version, followed by the message as
// [github.com/yardmaster-dev/yardmaster/internal/structpack] encodes it. Bodies are
// not copied when a message is decoded: they share its memory, which the receiver
// must not change.
package wire
