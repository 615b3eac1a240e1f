// Package dialogue plays conversations of the Overhop wire that are written
// down as text, one scenario a file, against whatever serves them. It is for
// tests.
//
//	# A job goes from a producer to a worker.
//	queue jobs {concurrency_limit: 1}
//	w registers delivery/1
//	w -> SUBSCRIBE {q: $jobs, credits: 1}
//	w <- OK {sid: $sid}
//	p registers
//	p -> ENQUEUE {q: $jobs, job_payload: {n: 1}}
//	p <- OK {jid: $jid}
//	w <- QUEST {jid: $jid, sid: $sid, tok: $tok, ...}
//
// A line that begins with white space goes on with the line before; # begins a
// comment. Lines without a speaker prepare and wait:
//
//	config limits.max_awaits_per_connection 2   the server's, of a world of its own
//	queue jobs {…}     adds a queue of a fresh name, $jobs, with that config
//	name jobs          only makes up a fresh name
//	after 10s          time passes, of a world with a clock of its own
//	yard fails         whatever the world understands
//	violation PING {a: 1}   registers, says it, is refused and closed; not(str)
//	                        in it is said with a value of every other kind
//
// A speaker is a connection; it begins with one of the first three:
//
//	a connects         a bare connection
//	a hello            HELLO and HI
//	a registers        HELLO, HI, REGISTER, OK; with delivery/1 it offers that
//	a -> NAME @rid {…} says a message; without @rid the ids count up
//	a ?> NAME {…}      asks again until the answer below is the one wanted
//	a <- NAME {…}      hears one, of the oldest unanswered id, or a push's
//	a <- ERR CODE {…}  the map, if there is one, is the details
//	a bytes 0000…      says raw bytes, in hexadecimal
//	a gathers          keeps what it says from now on,
//	a sends 1          and says it in pieces of so many bytes; 0: all at once
//	a quiet            hears nothing
//	a closed           hears nothing more: the server has closed
//	a leaves           closes
//
// Values are nil, true, 1, "text with ${var}", h'00ff' (binary), [1, 2],
// {key: 1, "any key": 2}, $var, raw'ca00000000' (bytes as they are),
// repeat("x", 9), list(1, 9), nest(9), zeros(9) and now(-10s), a time. What is
// heard may also be * (anything), uuid, time, int, str, bin, bool, map or array
// (anything of the kind), and ... as the rest of a map or some items of an
// array. A $var that has no value yet takes the one that is heard.
package dialogue
