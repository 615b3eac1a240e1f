// Package api is Yardmaster's public contract: the endpoints that a node serves over
// NATS and HTTP, the JSON of their requests and replies, and the codes of their
// errors. Nodes, the command line and other Go programs use the same types.
//
// [Endpoints] lists every operation with its NATS subject, its HTTP route, and the
// types of its request and its reply. A request over NATS is JSON sent to the
// subject; an empty body is an empty request. The reply is JSON of the reply type,
// or an error with the headers Nats-Service-Error and Nats-Service-Error-Code.
// docs/reference/api.md describes both transports.
//
// # Compatibility
//
// A node rejects a request with a field that it does not know. A reply may have
// fields that this version does not know: decode it leniently, as encoding/json
// does. Fields are added and never change their meaning.
//
// Durations have names that end in _ms and are in milliseconds, sizes are in
// bytes, and times are in RFC 3339 format, in UTC.
package api
