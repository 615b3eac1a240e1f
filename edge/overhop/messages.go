package overhop

import (
	"math"
	"time"
)

// Message types of the protocol's requests.
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

// Message types that a server sends.
const (
	TOK    = 101
	TErr   = 102
	THi    = 103
	TIdent = 104
	TPong  = 105
)

// Code is the code of an ERR. Codes are stable; the message that comes with a
// code is for people and may change.
type Code string

// Error codes of the protocol and of its reference server. Those of the first
// group end the connection.
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

// Hello describes a client, from its HELLO.
type Hello struct {
	Delivery bool   // the client offered the delivery extension
	Name     string // name of the client, for display; may be empty
	Client   string // the client's software; may be empty
}

// parseHello ignores fields that it does not know or that have another type,
// because the protocol's draft gives the payload of HELLO no meaning.
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

// ParseQueueName parses a payload that consists of a queue name. The error is a
// [*Violation].
func ParseQueueName(p Raw) (QueueName, error) {
	var r fieldReader
	q := QueueName{Queue: r.str("q", p.Get("q"))}
	return q, r.result()
}

// Subscribe is the payload of SUBSCRIBE.
type Subscribe struct {
	Queue   string
	Credits uint32 // initial credits
}

// ParseSubscribe parses a SUBSCRIBE. The error is a [*Violation].
func ParseSubscribe(p Raw) (Subscribe, error) {
	var f [2]Raw
	p.pick(f[:], "q", "credits")
	var r fieldReader
	s := Subscribe{Queue: r.str("q", f[0]), Credits: uint32(r.optInt("credits", f[1], 0, maxCount, 0))}
	return s, r.result()
}

// Credit is the payload of CREDIT, which adds credits to a subscription.
type Credit struct {
	SID     string // canonical UUID
	Credits uint32 // at least 1
}

// ParseCredit parses a CREDIT. The error is a [*Violation].
func ParseCredit(p Raw) (Credit, error) {
	var f [2]Raw
	p.pick(f[:], "sid", "credits")
	var r fieldReader
	c := Credit{SID: r.uuid("sid", f[0]), Credits: uint32(r.int("credits", f[1], 1, maxCount))}
	return c, r.result()
}

// ParseUnsubscribe parses an UNSUBSCRIBE and returns the subscription's id as a
// canonical UUID. The error is a [*Violation].
func ParseUnsubscribe(p Raw) (sid string, err error) {
	var r fieldReader
	sid = r.uuid("sid", p.Get("sid"))
	return sid, r.result()
}

// AddQueue is the payload of ADDQUEUE, which creates a queue.
type AddQueue struct {
	Name           string
	Limit          uint32 // concurrency_limit, the most jobs that run at once; 0: no limit
	AllowOverrides bool   // allow_job_overrides, default true
}

// ParseAddQueue parses an ADDQUEUE. The error is a [*Violation].
func ParseAddQueue(p Raw) (AddQueue, error) {
	var f [2]Raw
	p.pick(f[:], "name", "config")
	var r fieldReader
	a := AddQueue{Name: r.str("name", f[0]), AllowOverrides: true}
	if config := f[1]; len(config) > 0 {
		if config.Kind() != KindMap {
			r.mismatch("config", "a map", config)
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

// Enqueue is the payload of ENQUEUE, a job to be run. The fields from Function
// on are part of the delivery extension: a server ignores them for clients that
// did not offer it.
type Enqueue struct {
	Queue         string
	Payload       Raw       // encoded by [Marshal] or [Fields.Raw]; empty: none
	At            time.Time // earliest start; zero: now
	MaxAttempts   int64     // 0: the yard's default
	RetryInterval int64     // in milliseconds; 0: not set

	Function string            // "handler" or "runner#handler"
	Key      string            // idempotency key: a job with the same queue and key is the same job; at most 128 bytes
	Timeout  int64             // of one attempt, in milliseconds; 0: not set
	Priority *int64            // 0 to 9, 9 starts first; nil: 5
	Trace    map[string]string // trace context, such as traceparent
	Notify   bool              // push JOBEND when the job has ended

	// The guards. A unique or rate limit key keeps the job from being created
	// while another one holds the key, a debounce key replaces a job that has
	// not started. nil means not set; times are in milliseconds.
	UniqueKey    *string
	UniqueTTL    *int64
	RateLimitKey *string
	RateLimit    *int64
	DebounceKey  *string
	Debounce     *int64
}

// ParseEnqueue parses an ENQUEUE. The fields of the extension are read only if
// delivery is set. The error is a [*Violation].
func ParseEnqueue(p Raw, delivery bool) (Enqueue, error) {
	var f [17]Raw
	p.pick(f[:], "q", "job_payload", "scheduled_at", "max_attempts", "retry_interval_ms",
		"fn", "key", "timeout_ms", "priority", "trace", "notify", "unique_key", "unique_ttl_ms",
		"rate_limit_key", "rate_limit_ms", "debounce_key", "debounce_ms")
	var r fieldReader
	e := Enqueue{
		Queue:         r.str("q", f[0]),
		Payload:       f[1],
		At:            r.optTime("scheduled_at", f[2]),
		MaxAttempts:   r.optInt("max_attempts", f[3], 1, maxCount, 0),
		RetryInterval: r.optInt("retry_interval_ms", f[4], 1, maxInt, 0),
	}
	if delivery {
		e.Function = r.optStr("fn", nilAsAbsent(f[5]))
		e.Key = r.optStr("key", nilAsAbsent(f[6]))
		e.Timeout = r.optInt("timeout_ms", nilAsAbsent(f[7]), 1, maxInt, 0)
		if !f[8].IsNil() {
			priority := r.int("priority", f[8], 0, 9)
			e.Priority = &priority
		}
		e.Trace = r.optStrings("trace", nilAsAbsent(f[9]))
		e.Notify = r.optBool("notify", nilAsAbsent(f[10]), false)
		e.UniqueKey, e.UniqueTTL = r.optKey("unique_key", f[11]), r.optCount("unique_ttl_ms", f[12])
		e.RateLimitKey, e.RateLimit = r.optKey("rate_limit_key", f[13]), r.optCount("rate_limit_ms", f[14])
		e.DebounceKey, e.Debounce = r.optKey("debounce_key", f[15]), r.optCount("debounce_ms", f[16])
	}
	return e, r.result()
}

// ParseJobRef parses the jid of JOB, RMJOB and RETRYJOB. The error is a
// [*Violation].
func ParseJobRef(p Raw) (jid string, err error) {
	var r fieldReader
	jid = r.str("jid", p.Get("jid"))
	return jid, r.result()
}

// ListJobs is the payload of LSJOB, which requests a page of a queue's jobs.
type ListJobs struct {
	Queue, Status string
	Page          int64 // from 1
	PageSize      int64 // 0: the server's default
}

// ParseListJobs parses an LSJOB. The error is a [*Violation].
func ParseListJobs(p Raw) (ListJobs, error) {
	var f [4]Raw
	p.pick(f[:], "q", "status", "page", "page_size")
	var r fieldReader
	l := ListJobs{
		Queue: r.str("q", f[0]), Status: r.str("status", f[1]),
		Page: r.optInt("page", f[2], 1, maxCount, 1), PageSize: r.optInt("page_size", f[3], 1, maxCount, 0),
	}
	return l, r.result()
}

// ParseEmpty checks the payload of PING, LSQUEUE, STATUS and REGISTER, which
// must be an empty map. The error is a [*Violation].
func ParseEmpty(p Raw) error {
	if p.Len() != 0 {
		return &Violation{"payload must be an empty map"}
	}
	return nil
}

// Violation describes how a message violates the protocol. The server answers
// it with ERR PROTOCOL_VIOLATION and closes the connection.
type Violation struct{ Reason string }

func (v *Violation) Error() string { return v.Reason }

const (
	maxCount = 1<<32 - 1
	maxInt   = math.MaxInt64
)
