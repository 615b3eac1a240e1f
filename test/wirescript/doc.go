// Package wirescript runs scripted conversations of the Overhop protocol, one
// scenario per file, against any server that speaks it. It is for tests.
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
// A line that begins with white space continues the line before; # begins a
// comment. Lines without a client prepare and wait:
//
//	config limits.max_awaits_per_connection 2   configures the server; needs one for this script
//	queue jobs {…}     adds a queue of a unique name, $jobs, with that config
//	name jobs          only generates a unique name, $jobs
//	after 10s          advances the clock; needs a simulated one
//	yard fails         a command of the environment
//	violation PING {a: 1}   registers, sends it, must be refused and closed; not(str)
//	                        in it is sent with a value of every other kind
//
// A client is a connection; it begins with one of the first three:
//
//	a connects         a bare connection
//	a hello            HELLO and HI
//	a registers        HELLO, HI, REGISTER, OK; with delivery/1 it offers that extension
//	a -> NAME @rid {…} sends a message; without @rid the ids count up
//	a ?> NAME {…}      sends it again until the answer below is the expected one
//	a <- NAME {…}      receives the answer to the oldest open request, or a push
//	a <- ERR CODE {…}  the map, if there is one, is the details
//	a bytes 0000…      sends raw bytes, in hexadecimal
//	a gathers          buffers what it sends from now on,
//	a sends 1          and sends it in pieces of that many bytes; 0: all at once
//	a quiet            checks that nothing has arrived
//	a closed           checks that the server has closed and sent nothing more
//	a leaves           closes
//
// Values are nil, true, 1, "text with ${var}", h'00ff' (binary), [1, 2],
// {key: 1, "any key": 2}, $var, raw'ca00000000' (bytes as they are),
// repeat("x", 9), list(1, 9), nest(9), zeros(9) and now(-10s), a time. A received
// value may also be matched with * (anything), uuid, time, int, str, bin, bool,
// map or array (anything of the kind), and ... for the rest of a map or any number
// of items of an array. A $var without a value takes the received one.
package wirescript
