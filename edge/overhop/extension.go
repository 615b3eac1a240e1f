package overhop

import "time"

// Delivery is the name of the delivery extension in HELLO and HI.
const Delivery = "delivery/1"

// Requests of the delivery extension.
const (
	TAck        = 40
	TNack       = 41
	TBeat       = 42
	TProgress   = 43
	TLog        = 44
	TDone       = 45
	TFail       = 46
	TAwait      = 47
	TGoodbye    = 48
	TCancel     = 49
	TRetryJob   = 50
	TClrQueue   = 51
	TObliterate = 52
)

// Messages that a server pushes to clients that offered the extension.
const (
	TQuest   = 140
	TRecall  = 141
	TCredits = 142
	TDrain   = 143
	TBye     = 144
	TJobEnd  = 145
)

// Codes of the delivery extension.
const (
	CodeLeaseLost        Code = "LEASE_LOST"
	CodeJobNotActive     Code = "JOB_NOT_ACTIVE"
	CodeAlreadyTerminal  Code = "JOB_ALREADY_TERMINAL"
	CodeAckTimeout       Code = "ACK_TIMEOUT"
	CodeUnavailable      Code = "UNAVAILABLE"
	CodeResultTooLarge   Code = "RESULT_TOO_LARGE"
	CodeResponseTooLarge Code = "RESPONSE_TOO_LARGE"
	CodeDraining         Code = "DRAINING"
	CodeRateLimited      Code = "RATE_LIMITED"
	CodeDuplicateJob     Code = "DUPLICATE_JOB"
)

// Reasons of a CREDITS push.
const (
	CreditsRestored     = "RESTORED"
	CreditsUnsubscribed = "UNSUBSCRIBED"
	CreditsStalled      = "STALLED"
)

// TokenLen is the size of a lease token, in bytes.
const TokenLen = 16

// LeaseRef identifies a dispatch: the job, and the token that proves its lease.
// Both refer to the frame they were read from.
type LeaseRef struct{ JID, Token []byte }

func (r *fieldReader) leaseRef(jid, token Raw) LeaseRef {
	return LeaseRef{JID: r.text("jid", jid), Token: r.bin("tok", token)}
}

// ParseLeaseRef parses an ACK, or one job of a BEAT. The error is a
// [*Violation].
func ParseLeaseRef(p Raw) (LeaseRef, error) {
	var f [2]Raw
	p.pick(f[:], "jid", "tok")
	var r fieldReader
	h := r.leaseRef(f[0], f[1])
	return h, r.result()
}

// Nack is the payload of NACK, which declines a QUEST that was not
// acknowledged.
type Nack struct {
	LeaseRef
	Reason  string
	Delay   time.Duration // before the job may be sent again
	Credits uint32        // added to the queue's subscription
}

// ParseNack parses a NACK. The error is a [*Violation].
func ParseNack(p Raw) (Nack, error) {
	var f [5]Raw
	p.pick(f[:], "jid", "tok", "reason", "delay_ms", "credits")
	var r fieldReader
	n := Nack{
		LeaseRef: r.leaseRef(f[0], f[1]), Reason: r.optStr("reason", nilAsAbsent(f[2])),
		Delay:   milliseconds(r.optInt("delay_ms", nilAsAbsent(f[3]), 0, maxInt, 0)),
		Credits: uint32(r.optInt("credits", nilAsAbsent(f[4]), 1, maxCount, 0)),
	}
	return n, r.result()
}

// milliseconds converts ms to a Duration, at most the largest one.
func milliseconds(ms int64) time.Duration {
	return time.Duration(min(ms, maxInt/int64(time.Millisecond))) * time.Millisecond
}

// Beat is the payload of BEAT, which extends the lease of one job, or of those
// in Jobs.
type Beat struct {
	LeaseRef
	Extend time.Duration // requested length of the lease; 0: the server's
	Jobs   Raw           // array of items for ParseLeaseRef; empty: none
}

// ParseBeat parses a BEAT. The error is a [*Violation].
func ParseBeat(p Raw) (Beat, error) {
	var f [4]Raw
	p.pick(f[:], "jid", "tok", "extend_ms", "jobs")
	var r fieldReader
	b := Beat{Extend: milliseconds(r.optInt("extend_ms", nilAsAbsent(f[2]), 1, maxInt, 0))}
	if b.Jobs = nilAsAbsent(f[3]); len(b.Jobs) == 0 {
		b.LeaseRef = r.leaseRef(f[0], f[1])
	} else if b.Jobs.Kind() != KindArray {
		r.mismatch("jobs", "an array", b.Jobs)
	}
	return b, r.result()
}

// Progress is the payload of PROGRESS, which reports how far a job has come.
type Progress struct {
	LeaseRef
	Percent *int64 // 0 to 100; nil: none
	Data    Raw    // refers to the frame; empty: none
}

// ParseProgress parses a PROGRESS. The error is a [*Violation].
func ParseProgress(p Raw) (Progress, error) {
	var f [4]Raw
	p.pick(f[:], "jid", "tok", "percent", "data")
	var r fieldReader
	g := Progress{LeaseRef: r.leaseRef(f[0], f[1]), Data: f[3]}
	if !f[2].IsNil() {
		percent := r.int("percent", f[2], 0, 100)
		g.Percent = &percent
	}
	return g, r.result()
}

// Log is the payload of LOG, lines of a job's log.
type Log struct {
	LeaseRef
	Lines []LogLine
}

// LogLine is one line of a LOG. At and Level may be empty.
type LogLine struct{ At, Level, Text string }

// MaxLogLines is the number of lines read of one LOG. Further lines are
// ignored.
const MaxLogLines = 256

// ParseLog parses a LOG. The error is a [*Violation].
func ParseLog(p Raw) (Log, error) {
	var f [3]Raw
	p.pick(f[:], "jid", "tok", "lines")
	var r fieldReader
	l := Log{LeaseRef: r.leaseRef(f[0], f[1])}
	if f[2].Kind() != KindArray {
		r.mismatch("lines", "an array", f[2])
	}
	for item := range f[2].Items() {
		if len(l.Lines) == MaxLogLines || r.err != nil {
			break
		}
		if text, ok := item.Str(); ok {
			l.Lines = append(l.Lines, LogLine{Text: text})
			continue
		}
		var line [3]Raw
		item.pick(line[:], "at", "level", "msg")
		l.Lines = append(l.Lines, LogLine{
			At: r.optStr("lines.at", nilAsAbsent(line[0])), Level: r.optStr("lines.level", nilAsAbsent(line[1])),
			Text: r.str("lines.msg", line[2]),
		})
	}
	return l, r.result()
}

// Done is the payload of DONE, which ends a dispatch successfully.
type Done struct {
	LeaseRef
	Result  Raw    // refers to the frame; empty: none
	Credits uint32 // added to the queue's subscription
}

// ParseDone parses a DONE. The error is a [*Violation].
func ParseDone(p Raw) (Done, error) {
	var f [4]Raw
	p.pick(f[:], "jid", "tok", "result", "credits")
	var r fieldReader
	d := Done{LeaseRef: r.leaseRef(f[0], f[1]), Result: nilAsAbsent(f[2]), Credits: uint32(r.optInt("credits", nilAsAbsent(f[3]), 1, maxCount, 0))}
	return d, r.result()
}

// Fail is the payload of FAIL, which ends a dispatch with a failure.
type Fail struct {
	LeaseRef
	Message, Type, Code string
	Details             Raw            // refers to the frame; empty: none
	Retry               bool           // another attempt may follow; default true
	RetryAfter          *time.Duration // nil: the server decides
	Credits             uint32         // added to the queue's subscription
}

// ParseFail parses a FAIL. The error is a [*Violation].
func ParseFail(p Raw) (Fail, error) {
	var f [6]Raw
	p.pick(f[:], "jid", "tok", "error", "retry", "retry_after_ms", "credits")
	var r fieldReader
	m := Fail{
		LeaseRef: r.leaseRef(f[0], f[1]), Retry: r.optBool("retry", nilAsAbsent(f[3]), true),
		Credits: uint32(r.optInt("credits", nilAsAbsent(f[5]), 1, maxCount, 0)),
	}
	if f[2].Kind() != KindMap {
		r.mismatch("error", "a map", f[2])
	}
	var e [4]Raw
	f[2].pick(e[:], "message", "type", "code", "details")
	m.Message = r.str("error.message", e[0])
	m.Type = r.optStr("error.type", nilAsAbsent(e[1]))
	m.Code = r.optStr("error.code", nilAsAbsent(e[2]))
	m.Details = nilAsAbsent(e[3])
	if !f[4].IsNil() {
		after := milliseconds(r.int("retry_after_ms", f[4], 0, maxInt))
		m.RetryAfter = &after
	}
	return m, r.result()
}

// MaxAwait is the longest timeout of an AWAIT.
const MaxAwait = 600 * time.Second

// ParseAwait parses an AWAIT. The error is a [*Violation].
func ParseAwait(p Raw) (jid string, wait time.Duration, err error) {
	var f [2]Raw
	p.pick(f[:], "jid", "timeout_ms")
	var r fieldReader
	jid = r.str("jid", f[0])
	wait = milliseconds(r.int("timeout_ms", f[1], 0, MaxAwait.Milliseconds()))
	return jid, wait, r.result()
}

// Goodbye is the payload of GOODBYE, which announces that a worker is leaving.
type Goodbye struct {
	Reason string
	Drain  bool // the worker finishes its jobs first
}

// ParseGoodbye parses a GOODBYE. The error is a [*Violation].
func ParseGoodbye(p Raw) (Goodbye, error) {
	var f [2]Raw
	p.pick(f[:], "reason", "drain")
	var r fieldReader
	g := Goodbye{Reason: r.optStr("reason", nilAsAbsent(f[0])), Drain: r.optBool("drain", nilAsAbsent(f[1]), false)}
	return g, r.result()
}

// ParseCancel parses a CANCEL. The error is a [*Violation].
func ParseCancel(p Raw) (jid, reason string, err error) {
	var f [2]Raw
	p.pick(f[:], "jid", "reason")
	var r fieldReader
	jid, reason = r.str("jid", f[0]), r.optStr("reason", nilAsAbsent(f[1]))
	return jid, reason, r.result()
}

// ParseClrQueue parses a CLRQUEUE: a queue and the statuses of the jobs to
// remove. statuses is nil if the request has none, which is different from an
// empty list. The error is a [*Violation].
func ParseClrQueue(p Raw) (queue string, statuses []string, err error) {
	var f [2]Raw
	p.pick(f[:], "q", "statuses")
	var r fieldReader
	queue = r.str("q", f[0])
	if list := nilAsAbsent(f[1]); len(list) > 0 {
		statuses = []string{}
		if list.Kind() != KindArray {
			r.mismatch("statuses", "an array", list)
		}
	}
	for item := range f[1].Items() {
		if statuses = append(statuses, r.str("statuses", item)); r.err != nil || len(statuses) > 6 {
			break
		}
	}
	return queue, statuses, r.result()
}

// ParseObliterate parses an OBLITERATE. The error is a [*Violation].
func ParseObliterate(p Raw) (queue string, force bool, err error) {
	var f [2]Raw
	p.pick(f[:], "q", "force")
	var r fieldReader
	queue, force = r.str("q", f[0]), r.optBool("force", nilAsAbsent(f[1]), false)
	return queue, force, r.result()
}
