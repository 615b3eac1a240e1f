package overhop

import "time"

// Delivery is the name of the delivery extension in HELLO and HI.
const Delivery = "delivery/1"

// CapSnooze is the capability, in HELLO and HI, of giving a running attempt back by a FAIL
// with snooze_ms.
const CapSnooze = "snooze"

// CapJSON is the capability, in HELLO and HI, of taking values of users as JSON: a value
// that the yard has as JSON comes as binary under its key with [JSONSuffix] in place of
// the key itself. So fractions and integers of any size arrive as they were sent.
const (
	CapJSON    = "json"
	JSONSuffix = "_json"
)

// capHTTP is not a capability. An HTTP server reads a HELLO as the beginning of a request, and this
// text as its end. So the server answers at once, and not when its timeout has passed, and the client
// can tell that the port speaks HTTP.
const capHTTP = "\r\n\r\n"

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
	TSetQueue   = 53
	TSetJob     = 54
	TContent    = 55
	TAPI        = 56
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
	CodeRemovedJob       Code = "DUPLICATE_OF_REMOVED"
	CodeJobNotPending    Code = "JOB_NOT_PENDING"
	CodeContentNotFound  Code = "CONTENT_NOT_FOUND"
	CodeContentGone      Code = "CONTENT_GONE"
	CodeAPIError         Code = "API_ERROR"
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

func (r *fieldReader) leaseRef() LeaseRef {
	return LeaseRef{JID: r.text("jid"), Token: r.bin("tok")}
}

// leaseFields are the fields of a LeaseRef.
var leaseFields = []string{"jid", "tok"}

// ParseLeaseRef parses an ACK, or one job of a BEAT. The error is a
// [*Violation].
func ParseLeaseRef(p Raw) (LeaseRef, error) {
	r := newExtensionReader(p, leaseFields...)
	h := r.leaseRef()
	return h, r.err
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
	r := newExtensionReader(p, "jid", "tok", "reason", "delay_ms", "credits")
	n := Nack{
		LeaseRef: r.leaseRef(), Reason: r.optStr("reason"),
		Delay: milliseconds(r.optInt("delay_ms", 0, maxInt, 0)), Credits: r.addedCredits(),
	}
	return n, r.err
}

// addedCredits returns the credits that NACK, DONE and FAIL add to the queue's
// subscription.
func (r *fieldReader) addedCredits() uint32 { return uint32(r.optInt("credits", 1, maxCount, 0)) }

// Beat is the payload of BEAT, which extends the lease of one job, or of those
// in Jobs.
type Beat struct {
	LeaseRef
	Extend time.Duration // requested length of the lease; 0: the server's
	Jobs   Raw           // array of items for ParseLeaseRef; empty: none
}

// ParseBeat parses the payload of a BEAT, which is for the jobs in its list, or
// without a list for one job. The error is a [*Violation].
func ParseBeat(payload Raw) (Beat, error) {
	r := newExtensionReader(payload, "jid", "tok", "extend_ms", "jobs")
	b := Beat{Extend: milliseconds(r.optInt("extend_ms", 1, maxInt, 0))}
	if r.isAbsent("jobs") {
		b.LeaseRef = r.leaseRef()
	} else {
		b.Jobs = r.container("jobs", KindArray, "an array")
	}
	return b, r.err
}

// Progress is the payload of PROGRESS, which reports how far a job has come.
type Progress struct {
	LeaseRef
	Percent  *int64 // 0 to 100; nil: none
	Data     Raw    // refers to the frame; empty: none
	DataJSON []byte // in place of Data; nil: none
}

// ParseProgress parses a PROGRESS. The error is a [*Violation].
func ParseProgress(p Raw) (Progress, error) {
	r := newExtensionReader(p, "jid", "tok", "percent", "data", "data_json")
	g := Progress{
		LeaseRef: r.leaseRef(), Data: r.raw("data"), DataJSON: r.jsonOf("data" + JSONSuffix), Percent: r.optCount("percent", 0, 100),
	}
	return g, r.err
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

// ParseLog parses the payload of a LOG, each line of which is text or a map with
// "msg". It reads at most MaxLogLines lines. The error is a [*Violation].
func ParseLog(payload Raw) (Log, error) {
	r := newExtensionReader(payload, "jid", "tok", "lines")
	log := Log{LeaseRef: r.leaseRef()}
	for item := range r.container("lines", KindArray, "an array").Items() {
		if len(log.Lines) == MaxLogLines || r.err != nil {
			break
		}
		if text, ok := item.Str(); ok {
			log.Lines = append(log.Lines, LogLine{Text: text})
			continue
		}
		line := r.nested(item, "lines.", "at", "level", "msg")
		log.Lines = append(log.Lines, LogLine{At: line.optStr("at"), Level: line.optStr("level"), Text: line.str("msg")})
		r.err = line.err
	}
	return log, r.err
}

// Done is the payload of DONE, which ends a dispatch successfully.
type Done struct {
	LeaseRef
	Result     Raw    // refers to the frame; empty: none
	ResultJSON []byte // in place of Result; nil: none
	Credits    uint32 // added to the queue's subscription
}

// doneFields are the fields of a DONE.
var doneFields = []string{"credits", "jid", "result", "result_json", "tok"}

// ParseDone parses a DONE. The error is a [*Violation].
func ParseDone(p Raw) (Done, error) {
	r := newExtensionReader(p, doneFields...)
	d := Done{LeaseRef: r.leaseRef(), Result: r.optional("result"), ResultJSON: r.jsonOf("result" + JSONSuffix), Credits: r.addedCredits()}
	return d, r.err
}

// Fail is the payload of FAIL, which ends a dispatch with a failure.
type Fail struct {
	LeaseRef
	Message, Type, Code string
	Details             Raw            // refers to the frame; empty: none
	DetailsJSON         []byte         // in place of Details; nil: none
	Retry               bool           // another attempt may follow; default true
	RetryAfter          *time.Duration // nil: the server decides
	Snooze              *time.Duration // the attempt is given back for this time instead; nil: it has failed
	Credits             uint32         // added to the queue's subscription
}

// ParseFail parses the payload of a FAIL. The error is a [*Violation].
func ParseFail(payload Raw) (Fail, error) {
	r := newExtensionReader(payload, "jid", "tok", "error", "retry", "retry_after_ms", "snooze_ms", "credits")
	fail := Fail{LeaseRef: r.leaseRef(), Retry: r.optBool("retry", true), Credits: r.addedCredits()}
	reason := r.nested(r.container("error", KindMap, "a map"), "error.", "message", "type", "code", "details", "details_json")
	fail.Message, fail.Type, fail.Code = reason.str("message"), reason.optStr("type"), reason.optStr("code")
	fail.Details, fail.DetailsJSON = reason.optional("details"), reason.jsonOf("details"+JSONSuffix)
	r.err = reason.err
	if ms := r.optCount("retry_after_ms", 0, maxInt); ms != nil {
		fail.RetryAfter = new(milliseconds(*ms))
	}
	if ms := r.optCount("snooze_ms", 0, maxInt); ms != nil {
		fail.Snooze = new(milliseconds(*ms))
		if fail.RetryAfter != nil || !fail.Retry {
			r.fail("snooze_ms excludes retry_after_ms and retry false")
		}
	}
	return fail, r.err
}

// MaxAwait is the longest timeout of an AWAIT.
const MaxAwait = 600 * time.Second

// ParseAwait parses an AWAIT. The error is a [*Violation].
func ParseAwait(p Raw) (jid string, wait time.Duration, err error) {
	r := newExtensionReader(p, "jid", "timeout_ms")
	jid, wait = r.str("jid"), milliseconds(r.int("timeout_ms", 0, MaxAwait.Milliseconds()))
	return jid, wait, r.err
}

// Goodbye is the payload of GOODBYE, which announces that a worker is leaving.
type Goodbye struct {
	Reason string
	Drain  bool // the worker finishes its jobs first
}

// ParseGoodbye parses a GOODBYE. The error is a [*Violation].
func ParseGoodbye(p Raw) (Goodbye, error) {
	r := newExtensionReader(p, "reason", "drain")
	g := Goodbye{Reason: r.optStr("reason"), Drain: r.optBool("drain", false)}
	return g, r.err
}

// ParseCancel parses a CANCEL. The error is a [*Violation].
func ParseCancel(p Raw) (jid, reason string, err error) {
	r := newExtensionReader(p, "jid", "reason")
	jid, reason = r.str("jid"), r.optStr("reason")
	return jid, reason, r.err
}

// maxStatuses is the number of statuses that a job can have. Of a list with more,
// one more is read at most.
const maxStatuses = 6

// ParseClrQueue parses a CLRQUEUE: a queue and the statuses of the jobs to
// remove. statuses is nil if the request has none, which is different from an
// empty list. The error is a [*Violation].
func ParseClrQueue(payload Raw) (queue string, statuses []string, err error) {
	r := newExtensionReader(payload, "q", "statuses")
	queue = r.str("q")
	if r.isAbsent("statuses") {
		return queue, nil, r.err
	}
	statuses = []string{}
	for item := range r.container("statuses", KindArray, "an array").Items() {
		statuses = append(statuses, string(r.textOf("statuses", item)))
		if r.err != nil || len(statuses) > maxStatuses {
			break
		}
	}
	return queue, statuses, r.err
}

// SetQueue is the payload of SETQUEUE, which changes settings of a queue. Those that
// are nil stay as they are.
type SetQueue struct {
	Queue          string
	Limit          *uint32 // 0 removes the limit
	AllowOverrides *bool
	RetryOnTimeout *bool
}

// ParseSetQueue parses a SETQUEUE. In its config, a missing key leaves a setting, and nil
// resets it. The error is a [*Violation].
func ParseSetQueue(payload Raw) (SetQueue, error) {
	r := newFieldReader(payload, "q", "config")
	s := SetQueue{Queue: r.str("q")}
	config := r.nested(r.container("config", KindMap, "a map"), "config.", "concurrency_limit", "allow_job_overrides", "retry_on_timeout")
	isGiven := func(name string) bool { return len(config.raw(name)) > 0 }
	config.nilIsAbsent = true
	if isGiven("concurrency_limit") {
		s.Limit = new(uint32(config.optInt("concurrency_limit", 1, maxCount, 0)))
	}
	if isGiven("allow_job_overrides") {
		s.AllowOverrides = new(config.optBool("allow_job_overrides", true))
	}
	if isGiven("retry_on_timeout") {
		s.RetryOnTimeout = new(config.optBool("retry_on_timeout", false))
	}
	return s, config.err
}

// SetJob is the payload of SETJOB, which changes a waiting or delayed job. What is nil
// stays as it is.
type SetJob struct {
	JID      string
	Priority *int64
	At       *time.Time     // not before; nil if Delay is given
	Delay    *time.Duration // not before this time from now; 0: now
}

// ParseSetJob parses a SETJOB. The error is a [*Violation].
func ParseSetJob(p Raw) (SetJob, error) {
	r := newExtensionReader(p, "jid", "priority", "scheduled_at", "delay_ms")
	s := SetJob{JID: r.str("jid"), Priority: r.optCount("priority", 0, 9)}
	if !r.isAbsent("scheduled_at") {
		s.At = new(r.optTime("scheduled_at"))
	}
	if ms := r.optCount("delay_ms", 0, maxInt); ms != nil {
		s.Delay = new(milliseconds(*ms))
	}
	return s, r.err
}

// ParseObliterate parses an OBLITERATE. The error is a [*Violation].
func ParseObliterate(p Raw) (queue string, force bool, err error) {
	r := newExtensionReader(p, "q", "force")
	queue, force = r.str("q"), r.optBool("force", false)
	return queue, force, r.err
}
