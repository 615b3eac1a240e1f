// Package overhop is the Overhop wire protocol, version 2, both ends of it,
// and our delivery extension. It speaks wire, not domain: it knows no jobs of
// the yard, and needs no socket to be tested.
//
// Every frame ([yardmaster/internal/frame]) holds one MessagePack map, the
// [Envelope]: v = 2, t (what it is), rid (which request it belongs to), p (the
// rest). A client speaks with t up to 100 and a rid of its choice; the server
// answers each request once, in order, with the same rid and t above 100. What
// the server says unasked carries the rid "0".
//
//	client                                server
//	HELLO 1 {ext:["delivery/1"]} ───────▶
//	        ◀─────────────────────────── HI 103 {ext:["delivery/1"], node}
//	REGISTER 2 {} ──────────────────────▶          must follow within 10 s, or
//	        ◀─────────────────────────── IDENT 104 leaves it 2 s more
//	        ◀─────────────────────────── OK 101 {wid}
//	SUBSCRIBE 6 {q, credits} ───────────▶
//	        ◀─────────────────────────── OK 101 {sid}
//	        ◀─────────────────────────── QUEST 140 {jid, tok, job_payload, …}   one credit
//	ACK 40 {jid, tok} ──────────────────▶          within 5 s
//	        ◀─────────────────────────── OK 101 {lease_until}
//	BEAT 42 {jid, tok} ─────────────────▶          every 2 s of a lease of 6 s
//	        ◀─────────────────────────── OK 101 {lease_until, deadline}
//	DONE 45 {jid, tok, result, credits} ▶
//	        ◀─────────────────────────── OK 101 {status}     once it is committed
//
// Bytes that are no allowed value ([Check]) or no envelope ([ParseEnvelope])
// end a connection without a word. A message out of order ([Session]) or with
// a field of the wrong type ([Violation]) is answered with ERR 102 and ends it.
// All other refusals are an ERR with a [Code], and the connection stays.
//
// The extension is spoken only with who asked for it in HELLO: others never
// see a t above 105. The token of a QUEST, not the connection, owns the job's
// lease: a worker that lost its connection goes on with it on another, at any
// node.
//
// # For users
//
// [Worker] runs jobs and [Producer] hands them over. Both keep a connection to
// one of several nodes, and change over when it is gone, without losing or
// doubling what was under way. Below them are [Client], one connection with all
// that can be asked, and [Marshal] and [Unmarshal] for Go values. Numbers with a
// fraction are not on this wire.
package overhop
