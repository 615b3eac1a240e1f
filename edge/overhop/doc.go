// Package overhop implements the Overhop protocol, version 2, with the delivery
// extension: a Go client for users, and the codec that client and server share.
//
// # Clients
//
// [Worker] runs jobs, and [Producer] submits them. Both connect to one of
// several nodes and switch to another when it is lost, without losing or
// repeating requests. [Client] is a single connection. [Marshal] and [Unmarshal] convert Go values; the protocol has no
// floats.
//
// # Protocol
//
// Every frame ([yardmaster/internal/frame]) holds one MessagePack map, the
// [Envelope]: v (2, the version), t (the message type), rid (the request id) and
// p (the payload). A client sends types up to 100 with request ids of its
// choice. The server answers each request once, in order, with the same rid and
// a type above 100. Messages that the server sends without a request, called
// pushes, have the rid "0".
//
//	client                                server
//	HELLO 1 {ext:["delivery/1"]} ───────▶
//	        ◀─────────────────────────── HI 103 {ext:["delivery/1"], node}
//	REGISTER 2 {} ──────────────────────▶          must follow within 10 s;
//	        ◀─────────────────────────── IDENT 104 then the client has 2 s more
//	        ◀─────────────────────────── OK 101 {wid}
//	SUBSCRIBE 6 {q, credits} ───────────▶
//	        ◀─────────────────────────── OK 101 {sid}
//	        ◀─────────────────────────── QUEST 140 {jid, tok, job_payload, …}   one credit
//	ACK 40 {jid, tok} ──────────────────▶          within 5 s
//	        ◀─────────────────────────── OK 101 {lease_ms, …}   now the job may start
//	BEAT 42 {jid, tok} ─────────────────▶          every 2 s of a lease of 6 s
//	        ◀─────────────────────────── OK 101 {lease_ms, lease_until, deadline}
//	DONE 45 {jid, tok, result, credits} ▶
//	        ◀─────────────────────────── OK 101 {status}     once it is committed
//
// A frame that is not an allowed value ([Check]) or not an envelope
// ([ParseEnvelope]) ends the connection without an answer. A message out of
// order ([Session]) or with a field of the wrong type ([Violation]) is answered
// with ERR 102 and ends the connection. Every other refusal is an ERR with a
// [Code], after which the connection stays open.
//
// The server uses the extension only with clients that offered it in HELLO:
// other clients never receive a type above 105. A job's lease belongs to the
// token of its QUEST, not to the connection: a worker that lost its connection
// continues the job over another one, at any node.
package overhop
