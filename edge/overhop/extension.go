package overhop

import "time"

// Delivery is the name of our extension, as HELLO and HI carry it.
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

// What a server says unasked to who offered the extension.
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

// Why the server changed a balance of credits.
const (
	CreditsRestored     = "RESTORED"
	CreditsUnsubscribed = "UNSUBSCRIBED"
	CreditsStalled      = "STALLED"
)

// TokenLen is the size of a lease token, in bytes.
const TokenLen = 16

// Held names a dispatch: its job and the token that proves its lease. Both lie
// in the frame.
type Held struct{ JID, Token []byte }

func (r *reading) held(jid, token Raw) Held {
	return Held{JID: r.text("jid", jid), Token: r.bin("tok", token)}
}

// ParseHeld reads an ACK, or one job of a BEAT; the error is a [*Violation].
func ParseHeld(p Raw) (Held, error) {
	var f [2]Raw
	p.pick(f[:], "jid", "tok")
	var r reading
	h := r.held(f[0], f[1])
	return h, r.result()
}

// Nack declines a QUEST before its ACK.
type Nack struct {
	Held
	Reason  string
	Delay   time.Duration // before it is offered again
	Credits uint32        // given with it
}

// ParseNack reads it; the error is a [*Violation].
func ParseNack(p Raw) (Nack, error) {
	var f [5]Raw
	p.pick(f[:], "jid", "tok", "reason", "delay_ms", "credits")
	var r reading
	n := Nack{
		Held: r.held(f[0], f[1]), Reason: r.optStr("reason", orAbsent(f[2])),
		Delay:   milliseconds(r.optInt("delay_ms", orAbsent(f[3]), 0, maxInt, 0)),
		Credits: uint32(r.optInt("credits", orAbsent(f[4]), 1, maxCount, 0)),
	}
	return n, r.result()
}

// milliseconds keeps what is beyond a Duration at its end.
func milliseconds(ms int64) time.Duration {
	return time.Duration(min(ms, maxInt/int64(time.Millisecond))) * time.Millisecond
}

// Beat extends leases: of the one job it names, or of those in Jobs.
type Beat struct {
	Held
	Extend time.Duration // 0: the server's lease
	Jobs   Raw           // an array to be read with ParseHeld; empty: none
}

// ParseBeat reads it; the error is a [*Violation].
func ParseBeat(p Raw) (Beat, error) {
	var f [4]Raw
	p.pick(f[:], "jid", "tok", "extend_ms", "jobs")
	var r reading
	b := Beat{Extend: milliseconds(r.optInt("extend_ms", orAbsent(f[2]), 1, maxInt, 0))}
	if b.Jobs = orAbsent(f[3]); len(b.Jobs) == 0 {
		b.Held = r.held(f[0], f[1])
	} else if b.Jobs.Kind() != KindArray {
		r.wrong("jobs", "an array", b.Jobs)
	}
	return b, r.result()
}

// Progress tells how far a job is.
type Progress struct {
	Held
	Percent *int64 // 0 to 100
	Data    Raw    // in the frame; empty: none
}

// ParseProgress reads it; the error is a [*Violation].
func ParseProgress(p Raw) (Progress, error) {
	var f [4]Raw
	p.pick(f[:], "jid", "tok", "percent", "data")
	var r reading
	g := Progress{Held: r.held(f[0], f[1]), Data: f[3]}
	if !f[2].IsNil() {
		percent := r.int("percent", f[2], 0, 100)
		g.Percent = &percent
	}
	return g, r.result()
}

// Log carries lines of a job's log.
type Log struct {
	Held
	Lines []LogLine
}

// LogLine is one of them.
type LogLine struct{ At, Level, Text string }

// MaxLogLines is how many lines of one LOG are read; the rest is ignored.
const MaxLogLines = 256

// ParseLog reads it; the error is a [*Violation].
func ParseLog(p Raw) (Log, error) {
	var f [3]Raw
	p.pick(f[:], "jid", "tok", "lines")
	var r reading
	l := Log{Held: r.held(f[0], f[1])}
	if f[2].Kind() != KindArray {
		r.wrong("lines", "an array", f[2])
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
			At: r.optStr("lines.at", orAbsent(line[0])), Level: r.optStr("lines.level", orAbsent(line[1])),
			Text: r.str("lines.msg", line[2]),
		})
	}
	return l, r.result()
}

// Done ends a dispatch well.
type Done struct {
	Held
	Result  Raw    // in the frame; empty: none
	Credits uint32 // given with it
}

// ParseDone reads it; the error is a [*Violation].
func ParseDone(p Raw) (Done, error) {
	var f [4]Raw
	p.pick(f[:], "jid", "tok", "result", "credits")
	var r reading
	d := Done{Held: r.held(f[0], f[1]), Result: orAbsent(f[2]), Credits: uint32(r.optInt("credits", orAbsent(f[3]), 1, maxCount, 0))}
	return d, r.result()
}

// Fail ends a dispatch badly.
type Fail struct {
	Held
	Message, Type, Code string
	Details             Raw            // in the frame; empty: none
	Retry               bool           // default true
	RetryAfter          *time.Duration // nil: the server decides
	Credits             uint32         // given with it
}

// ParseFail reads it; the error is a [*Violation].
func ParseFail(p Raw) (Fail, error) {
	var f [6]Raw
	p.pick(f[:], "jid", "tok", "error", "retry", "retry_after_ms", "credits")
	var r reading
	m := Fail{
		Held: r.held(f[0], f[1]), Retry: r.optBool("retry", orAbsent(f[3]), true),
		Credits: uint32(r.optInt("credits", orAbsent(f[5]), 1, maxCount, 0)),
	}
	if f[2].Kind() != KindMap {
		r.wrong("error", "a map", f[2])
	}
	var e [4]Raw
	f[2].pick(e[:], "message", "type", "code", "details")
	m.Message = r.str("error.message", e[0])
	m.Type = r.optStr("error.type", orAbsent(e[1]))
	m.Code = r.optStr("error.code", orAbsent(e[2]))
	m.Details = orAbsent(e[3])
	if !f[4].IsNil() {
		after := milliseconds(r.int("retry_after_ms", f[4], 0, maxInt))
		m.RetryAfter = &after
	}
	return m, r.result()
}

// MaxAwait is the longest an AWAIT may wait.
const MaxAwait = 600 * time.Second

// ParseAwait reads an AWAIT; the error is a [*Violation].
func ParseAwait(p Raw) (jid string, wait time.Duration, err error) {
	var f [2]Raw
	p.pick(f[:], "jid", "timeout_ms")
	var r reading
	jid = r.str("jid", f[0])
	wait = milliseconds(r.int("timeout_ms", f[1], 0, MaxAwait.Milliseconds()))
	return jid, wait, r.result()
}

// Goodbye announces that a worker leaves.
type Goodbye struct {
	Reason string
	Drain  bool // it finishes what it has
}

// ParseGoodbye reads it; the error is a [*Violation].
func ParseGoodbye(p Raw) (Goodbye, error) {
	var f [2]Raw
	p.pick(f[:], "reason", "drain")
	var r reading
	g := Goodbye{Reason: r.optStr("reason", orAbsent(f[0])), Drain: r.optBool("drain", orAbsent(f[1]), false)}
	return g, r.result()
}

// ParseCancel reads a CANCEL; the error is a [*Violation].
func ParseCancel(p Raw) (jid, reason string, err error) {
	var f [2]Raw
	p.pick(f[:], "jid", "reason")
	var r reading
	jid, reason = r.str("jid", f[0]), r.optStr("reason", orAbsent(f[1]))
	return jid, reason, r.result()
}

// ParseClrQueue reads a CLRQUEUE: a queue and the statuses of the jobs to
// remove, nil if the request names none, which is not the same as an empty list
// of them; the error is a [*Violation].
func ParseClrQueue(p Raw) (queue string, statuses []string, err error) {
	var f [2]Raw
	p.pick(f[:], "q", "statuses")
	var r reading
	queue = r.str("q", f[0])
	if list := orAbsent(f[1]); len(list) > 0 {
		statuses = []string{}
		if list.Kind() != KindArray {
			r.wrong("statuses", "an array", list)
		}
	}
	for item := range f[1].Items() {
		if statuses = append(statuses, r.str("statuses", item)); r.err != nil || len(statuses) > 6 {
			break
		}
	}
	return queue, statuses, r.result()
}

// ParseObliterate reads an OBLITERATE; the error is a [*Violation].
func ParseObliterate(p Raw) (queue string, force bool, err error) {
	var f [2]Raw
	p.pick(f[:], "q", "force")
	var r reading
	queue, force = r.str("q", f[0]), r.optBool("force", orAbsent(f[1]), false)
	return queue, force, r.result()
}
