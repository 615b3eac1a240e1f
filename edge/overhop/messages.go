package overhop

import (
	"math"
	"time"
)

// Requests of the protocol's draft.
const (
	THello       = 1
	TRegister    = 2
	TPing        = 3
	TQueue       = 4 // GQUEUE in the draft
	TLsQueue     = 5 // LQUEUES in the draft
	TSubscribe   = 6
	TUnsubscribe = 7
	TCredit      = 8
	TAddQueue    = 9
	TStatus      = 10
	TRmQueue     = 11
	TPause       = 12
	TResume      = 13
	TEnqueue     = 14
	TJob         = 15
	TRmJob       = 16
	TLsJob       = 17
	TQStats      = 18
)

// What a server answers and says by the draft.
const (
	TOK    = 101
	TErr   = 102
	THi    = 103
	TIdent = 104
	TPong  = 105
)

// Code is an ERR's code: stable, for programs. The message beside it is for
// people and may change.
type Code string

// Codes of the draft and its implementation. The first three end the
// connection.
const (
	CodeProtocolViolation Code = "PROTOCOL_VIOLATION"
	CodeRegisterTimeout   Code = "REGISTER_TIMEOUT"
	CodeConnectionTimeout Code = "CONNECTION_TIMEOUT"
	CodeUnauthorized      Code = "UNAUTHORIZED"

	CodeQueueNotFound       Code = "QUEUE_NOT_FOUND"
	CodeSystemQueue         Code = "SYSTEM_QUEUE_FORBIDDEN"
	CodeQueueNotEmpty       Code = "QUEUE_NOT_EMPTY"
	CodeQueuePaused         Code = "QUEUE_ALREADY_PAUSED"
	CodeQueueRunning        Code = "QUEUE_ALREADY_RUNNING"
	CodeDuplicateQueue      Code = "DUPLICATE_QUEUE"
	CodeInvalidQueueName    Code = "INVALID_QUEUE_NAME"
	CodeQueuePool           Code = "QUEUE_POOL_ERROR"
	CodeQueuePersistence    Code = "QUEUE_PERSISTENCE_ERROR"
	CodeDuplicateSub        Code = "DUPLICATE_SUBSCRIPTION"
	CodeSubNotFound         Code = "SUBSCRIPTION_NOT_FOUND"
	CodeInvalidJobID        Code = "INVALID_JOB_ID"
	CodeInvalidJobPayload   Code = "INVALID_JOB_PAYLOAD"
	CodeInvalidStatusFilter Code = "INVALID_JOB_STATUS_FILTER"
	CodeJobNotFound         Code = "JOB_NOT_FOUND"
	CodeJobNotRemovable     Code = "JOB_STATUS_NOT_REMOVABLE"
	CodeJobPersistence      Code = "JOB_PERSISTENCE_ERROR"
	CodeDiagnostics         Code = "DIAGNOSTICS_ERROR"
	CodeNotImplemented      Code = "NOT_IMPLEMENTED"
)

// Hello is what a client says of itself.
type Hello struct {
	Delivery bool   // it offered the delivery extension
	Name     string // of the client, for people; may be empty
	Client   string // its software; may be empty
}

// parseHello takes what it knows and ignores the rest, whatever its type: the
// draft gives HELLO's payload no meaning.
func parseHello(p Raw) Hello {
	var f [3]Raw
	p.pick(f[:], "ext", "name", "client")
	var h Hello
	for ext := range f[0].Items() {
		if name, _ := ext.Text(); string(name) == Delivery {
			h.Delivery = true
		}
	}
	h.Name, _ = f[1].Str()
	h.Client, _ = f[2].Str()
	return h
}

// QueueName is the payload of QUEUE, RMQUEUE, PAUSE, RESUME and QSTATS.
type QueueName struct{ Queue string }

// ParseQueueName reads it; the error is a [*Violation].
func ParseQueueName(p Raw) (QueueName, error) {
	var r reading
	q := QueueName{Queue: r.str("q", p.Get("q"))}
	return q, r.result()
}

// Subscribe asks for a queue's jobs.
type Subscribe struct {
	Queue   string
	Credits uint32 // to begin with
}

// ParseSubscribe reads it; the error is a [*Violation].
func ParseSubscribe(p Raw) (Subscribe, error) {
	var f [2]Raw
	p.pick(f[:], "q", "credits")
	var r reading
	s := Subscribe{Queue: r.str("q", f[0]), Credits: uint32(r.optInt("credits", f[1], 0, maxCount, 0))}
	return s, r.result()
}

// Credit gives more credits to a subscription.
type Credit struct {
	SID     string // canonical
	Credits uint32 // ≥ 1
}

// ParseCredit reads it; the error is a [*Violation].
func ParseCredit(p Raw) (Credit, error) {
	var f [2]Raw
	p.pick(f[:], "sid", "credits")
	var r reading
	c := Credit{SID: r.uuid("sid", f[0]), Credits: uint32(r.int("credits", f[1], 1, maxCount))}
	return c, r.result()
}

// ParseUnsubscribe reads an UNSUBSCRIBE's sid, canonical; the error is a
// [*Violation].
func ParseUnsubscribe(p Raw) (sid string, err error) {
	var r reading
	sid = r.uuid("sid", p.Get("sid"))
	return sid, r.result()
}

// AddQueue creates a queue.
type AddQueue struct {
	Name           string
	Limit          uint32 // concurrency_limit; 0: none
	AllowOverrides bool   // allow_job_overrides, default true
}

// ParseAddQueue reads it; the error is a [*Violation].
func ParseAddQueue(p Raw) (AddQueue, error) {
	var f [2]Raw
	p.pick(f[:], "name", "config")
	var r reading
	a := AddQueue{Name: r.str("name", f[0]), AllowOverrides: true}
	if config := f[1]; len(config) > 0 {
		if config.Kind() != KindMap {
			r.wrong("config", "a map", config)
		}
		var c [2]Raw
		config.pick(c[:], "concurrency_limit", "allow_job_overrides")
		if !c[0].IsNil() {
			a.Limit = uint32(r.int("config.concurrency_limit", c[0], 1, maxCount))
		}
		a.AllowOverrides = r.optBool("config.allow_job_overrides", c[1], true)
	}
	return a, r.result()
}

// Enqueue is a job to be done. The fields from Function on are our additions
// and count only for who offered the delivery extension.
type Enqueue struct {
	Queue         string
	Payload       Raw // nil or empty: none
	At            time.Time
	MaxAttempts   int64 // 0: not given
	RetryInterval int64 // in milliseconds; 0: not given

	Function string // "handler" or "runner#handler"
	Key      string // idempotency key: the same key is the same job
	Timeout  int64  // of one attempt, in milliseconds; 0: not given
	Priority *int64 // 0 to 9
	Trace    map[string]string
	Notify   bool // push JOBEND when the job has ended

	// Keys by which the job is made only if no other is in its way, nil if not
	// given; times in milliseconds.
	UniqueKey    *string
	UniqueTTL    *int64
	RateLimitKey *string
	RateLimit    *int64
	DebounceKey  *string
	Debounce     *int64
}

// ParseEnqueue reads it; the error is a [*Violation].
func ParseEnqueue(p Raw, delivery bool) (Enqueue, error) {
	var f [17]Raw
	p.pick(f[:], "q", "job_payload", "scheduled_at", "max_attempts", "retry_interval_ms",
		"fn", "key", "timeout_ms", "priority", "trace", "notify", "unique_key", "unique_ttl_ms",
		"rate_limit_key", "rate_limit_ms", "debounce_key", "debounce_ms")
	var r reading
	e := Enqueue{
		Queue:         r.str("q", f[0]),
		Payload:       f[1],
		At:            r.optTime("scheduled_at", f[2]),
		MaxAttempts:   r.optInt("max_attempts", f[3], 1, maxCount, 0),
		RetryInterval: r.optInt("retry_interval_ms", f[4], 1, maxInt, 0),
	}
	if delivery {
		e.Function = r.optStr("fn", orAbsent(f[5]))
		e.Key = r.optStr("key", orAbsent(f[6]))
		e.Timeout = r.optInt("timeout_ms", orAbsent(f[7]), 1, maxInt, 0)
		if !f[8].IsNil() {
			priority := r.int("priority", f[8], 0, 9)
			e.Priority = &priority
		}
		e.Trace = r.optTexts("trace", orAbsent(f[9]))
		e.Notify = r.optBool("notify", orAbsent(f[10]), false)
		e.UniqueKey, e.UniqueTTL = r.optKey("unique_key", f[11]), r.optCount("unique_ttl_ms", f[12])
		e.RateLimitKey, e.RateLimit = r.optKey("rate_limit_key", f[13]), r.optCount("rate_limit_ms", f[14])
		e.DebounceKey, e.Debounce = r.optKey("debounce_key", f[15]), r.optCount("debounce_ms", f[16])
	}
	return e, r.result()
}

// ParseJobRef reads the jid of JOB, RMJOB and RETRYJOB; the error is a
// [*Violation].
func ParseJobRef(p Raw) (jid string, err error) {
	var r reading
	jid = r.str("jid", p.Get("jid"))
	return jid, r.result()
}

// ListJobs asks for a page of a queue's jobs.
type ListJobs struct {
	Queue, Status string
	Page          int64 // from 1
	PageSize      int64 // 0: the server's default
}

// ParseListJobs reads it; the error is a [*Violation].
func ParseListJobs(p Raw) (ListJobs, error) {
	var f [4]Raw
	p.pick(f[:], "q", "status", "page", "page_size")
	var r reading
	l := ListJobs{
		Queue: r.str("q", f[0]), Status: r.str("status", f[1]),
		Page: r.optInt("page", f[2], 1, maxCount, 1), PageSize: r.optInt("page_size", f[3], 1, maxCount, 0),
	}
	return l, r.result()
}

// ParseEmpty checks the payload of PING, LSQUEUE, STATUS and REGISTER, which
// must be an empty map; the error is a [*Violation].
func ParseEmpty(p Raw) error {
	if p.Len() != 0 {
		return &Violation{"payload must be an empty map"}
	}
	return nil
}

// Violation says what a client did against the protocol: it gets an ERR
// PROTOCOL_VIOLATION and its connection ends.
type Violation struct{ Reason string }

func (v *Violation) Error() string { return v.Reason }

const (
	maxCount = 1<<32 - 1
	maxInt   = math.MaxInt64
)
