// Package history encodes and expands the messages of the history stream, which contain the
// events of the runtime contract in a compact form. It is text, and adjacent events about
// one dispatch share a line, so that an event takes about 20 bytes instead of 130.
//
//	{"seq":6,"at":"2026-11-26T02:24:27.972Z"}
//	["NnA","FizP_gjVUtyflddbjo2WGQ","mail","send","overhop/c58b338a","n1",1]
//	["N","UkO9pvByXhOqFdDPWqzJmQ",0,1]
//	9
//	["d",0,0]
//	["nA",1,0,2,3,1]
//	{"event":"run.heartbeat","owner":"n1","phase":"execute","seq":13,"at":"2026-11-26T02:24:27.981Z"}
//
// A message is a sequence of lines, each a JSON value:
//
//   - The first is an object with the number and time of the first event. The following
//     events have the following numbers.
//   - An integer is the time of the events after it, in milliseconds since the first.
//   - An array has events about one dispatch: a text with one letter for each, the dispatch,
//     its queue, and the fields of each event in order.
//   - An array that begins with "-" is a jobs.forgotten: a queue, and an object with the numbers
//     of jobs by state.
//   - An object with the key "event" is any other event, as [ledger.Event.AppendLine] writes it.
//
// The letters and their fields are:
//
//	N  DispatchQueued of a new job: function or ""
//	Q  DispatchQueued: function or "", where the job was before
//	n  DispatchNotified: channel
//	A  worker.assigned to the channel of the n before it, first attempt: node, function or ""
//	B  worker.assigned, likewise: node, function, attempt, key or "", limits or ""
//	d  DispatchDelivered without a result
//	D  DispatchDelivered with the result that follows the one of the D or R before it
//	R  DispatchDelivered: number of the result
//	F  DispatchFailed: reason, type of the error or "", what became of the job; if that is
//	   "delayed", when it is due, in milliseconds since the first event
//	e  job.details: when the job was accepted, in nanoseconds since the first event, priority, key
//	   under which it uses limits, its labels as an object, or null
//	E  job.details of a job with the priority by default, and neither such a key nor labels: when it
//	   was accepted
//	K  the same of a job with no label but its own key: when it was accepted, and the key. If it begins
//	   like the key of the K before it, the number of ASCII characters that both begin with precedes
//	   it, and these are left out
//	P  no event, but where the record of the next job.details is: lane, sequence since the last record
//	   of that lane in a job.details of the message, or since 0, and index
//	p  no event: that record is the next one in the message of the record before it. Without P and p
//	   it is the first one of the next message of that lane
//	c  job.changed: function or "", where the job was before, and then; when it is due, as in F
//
// Earlier builds wrote q, a and f: DispatchQueued{function}, worker.assigned, and
// DispatchFailed{reason, type of the error}.
//
// A dispatch is the job's id in URL-safe base64 without padding, followed by "#<n>" unless it
// is the job's first. A dispatch, and a name (any other text in an array), is written once per
// message. An integer in its place stands for one that was written before: both are counted
// from 0, dispatches and names separately.
//
// Messages of builds before this form have only lines with the key "event".
package history
