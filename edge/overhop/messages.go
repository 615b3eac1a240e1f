package overhop

import (
	"strings"
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

	// The capabilities that the client named, if it offered the extension.
	JSON, Content, API, Snooze bool
}

// capability is a capability of this release.
type capability struct {
	name string // in HELLO and HI
	of   func(*Hello) *bool
}

// capabilities lists all, in the order in which HI names them.
var capabilities = []capability{
	{CapJSON, func(h *Hello) *bool { return &h.JSON }},
	{CapContent, func(h *Hello) *bool { return &h.Content }},
	{CapAPI, func(h *Hello) *bool { return &h.API }},
	{CapSnooze, func(h *Hello) *bool { return &h.Snooze }},
}

// parseHello parses a HELLO. It ignores fields of another type than expected,
// because the protocol's draft gives the payload of HELLO no meaning.
func parseHello(p Raw) Hello {
	r := newExtensionReader(p, "ext", "caps", "name", "client")
	h := Hello{Name: cutHelloText(r.optStr("name")), Client: cutHelloText(r.optStr("client"))}
	for extension := range r.raw("ext").Items() {
		if name, _ := extension.Text(); string(name) == Delivery {
			h.Delivery = true
		}
	}
	for named := range r.raw("caps").Items() {
		name, _ := named.Text()
		for _, c := range capabilities {
			if h.Delivery && string(name) == c.name {
				*c.of(&h) = true
			}
		}
	}
	return h
}

// maxHelloText is how many bytes of a text in HELLO are kept, which a connection holds for
// as long as it lasts.
const maxHelloText = 128

// cutHelloText returns a copy of the first maxHelloText bytes of text, without a partial
// character at the end.
func cutHelloText(text string) string {
	if len(text) <= maxHelloText {
		return text
	}
	return strings.ToValidUTF8(strings.Clone(text[:maxHelloText]), "")
}

// ParseQueueName parses the queue name of QUEUE, RMQUEUE, PAUSE, RESUME and
// QSTATS. The error is a [*Violation].
func ParseQueueName(p Raw) (queue string, err error) { return parseText(p, "q") }

// ParseJobRef parses the jid of JOB, RMJOB and RETRYJOB. The error is a
// [*Violation].
func ParseJobRef(p Raw) (jid string, err error) { return parseText(p, "jid") }

// parseText returns the field of p with the given name, which must be text.
func parseText(p Raw, name string) (text string, err error) {
	r := newFieldReader(p, name)
	text = r.str(name)
	return text, r.err
}

// Subscribe is the payload of SUBSCRIBE.
type Subscribe struct {
	Queue   string
	Credits uint32 // initial credits
}

// ParseSubscribe parses a SUBSCRIBE. The error is a [*Violation].
func ParseSubscribe(p Raw) (Subscribe, error) {
	r := newFieldReader(p, "q", "credits")
	s := Subscribe{Queue: r.str("q"), Credits: uint32(r.optInt("credits", 0, maxCount, 0))}
	return s, r.err
}

// Credit is the payload of CREDIT, which adds credits to a subscription.
type Credit struct {
	SID     string // canonical UUID
	Credits uint32 // at least 1
}

// ParseCredit parses a CREDIT. The error is a [*Violation].
func ParseCredit(p Raw) (Credit, error) {
	r := newFieldReader(p, "sid", "credits")
	c := Credit{SID: r.uuid("sid"), Credits: uint32(r.int("credits", 1, maxCount))}
	return c, r.err
}

// ParseUnsubscribe parses an UNSUBSCRIBE and returns the subscription's id as a
// canonical UUID. The error is a [*Violation].
func ParseUnsubscribe(p Raw) (sid string, err error) {
	r := newFieldReader(p, "sid")
	sid = r.uuid("sid")
	return sid, r.err
}

// AddQueue is the payload of ADDQUEUE, which creates a queue.
type AddQueue struct {
	Name           string
	Limit          uint32 // concurrency_limit, the most jobs that run at once; 0: no limit
	AllowOverrides bool   // allow_job_overrides, default true
}

// ParseAddQueue parses the payload of an ADDQUEUE, whose config is optional. The
// error is a [*Violation].
func ParseAddQueue(payload Raw) (AddQueue, error) {
	r := newFieldReader(payload, "name", "config")
	queue := AddQueue{Name: r.str("name"), AllowOverrides: true}
	if r.isAbsent("config") {
		return queue, r.err
	}
	config := r.nested(r.container("config", KindMap, "a map"), "config.", "concurrency_limit", "allow_job_overrides")
	if limit := config.optCount("concurrency_limit", 1, maxCount); limit != nil {
		queue.Limit = uint32(*limit)
	}
	queue.AllowOverrides = config.optBool("allow_job_overrides", true)
	return queue, config.err
}

// Enqueue is the payload of ENQUEUE, a job to be run. The fields from Function
// on are part of the delivery extension: a server ignores them for clients that
// did not offer it.
type Enqueue struct {
	Queue         string
	Payload       Raw       // encoded by [Marshal] or [Fields.Raw]; empty: none
	At            time.Time // earliest start; zero: now. With Delay, it is for nodes of older releases
	MaxAttempts   int64     // 0: the yard's default
	RetryInterval int64     // in milliseconds; 0: not set

	PayloadJSON []byte // in place of Payload; nil: none

	Function       string            // "handler" or "runner#handler"
	Key            string            // idempotency key: a job with the same queue and key is the same job; at most 128 bytes
	Timeout        int64             // of one attempt, in milliseconds; 0: not set
	RetryOnTimeout *bool             // retry a timeout like a failure; nil: as the queue has it
	Priority       *int64            // 0 to 9, 9 starts first; nil: 5
	Trace          map[string]string // trace context, such as traceparent
	Notify         bool              // push JOBEND when the job has ended
	ResultTTL      int64             // how long the result is kept, in milliseconds; 0: not set

	// The guards. A unique or rate limit key keeps the job from being created
	// while another one holds the key, a debounce key replaces a job that has
	// not started. nil means not set; times are in milliseconds.
	UniqueKey    *string
	UniqueTTL    *int64
	UniqueUntil  *string // "start" or "end" of the job, in place of UniqueTTL
	RateLimitKey *string
	RateLimit    *int64
	DebounceKey  *string
	Debounce     *int64

	LimitKey  *string           // under which the job uses limits; nil: not set
	Limits    map[string]string // limits that it uses besides those of its queue, each with a key; "" stands for LimitKey
	Tags      []string
	Meta      map[string]string
	ExpiresIn *int64    // milliseconds after which the job expires unless it has started; nil: never
	ExpiresAt time.Time // in place of ExpiresIn; zero: never
	Delay     *int64    // milliseconds from acceptance to the earliest start, in place of At; nil: not set
}

// enqueueFields are the fields of an ENQUEUE.
var enqueueFields = []string{
	"debounce_key", "debounce_ms", "delay_ms", "expires_at", "expires_in_ms", "fn", "job_payload", "job_payload_json", "key", "limit_key", "limits",
	"max_attempts", "meta", "notify", "priority", "q", "rate_limit_key", "rate_limit_ms", "result_ttl_ms", "retry_interval_ms",
	"retry_on_timeout", "scheduled_at", "tags", "timeout_ms", "trace", "unique_key", "unique_ttl_ms", "unique_until",
}

// ParseEnqueue parses the payload of an ENQUEUE. The fields of the delivery
// extension are read only if delivery is set. The error is a [*Violation].
func ParseEnqueue(payload Raw, delivery bool) (Enqueue, error) {
	r := newFieldReader(payload, enqueueFields...)
	e := Enqueue{
		Queue:         r.str("q"),
		Payload:       r.raw("job_payload"),
		At:            r.optTime("scheduled_at"),
		MaxAttempts:   r.optInt("max_attempts", 1, maxCount, 0),
		RetryInterval: r.optInt("retry_interval_ms", 1, maxInt, 0),
	}
	if delivery {
		r.nilIsAbsent = true
		e.PayloadJSON = r.jsonOf("job_payload" + JSONSuffix)
		e.Function, e.Key = r.optStr("fn"), r.optStr("key")
		e.Timeout = r.optInt("timeout_ms", 1, maxInt, 0)
		if !r.isAbsent("retry_on_timeout") {
			e.RetryOnTimeout = new(r.optBool("retry_on_timeout", false))
		}
		e.Priority = r.optCount("priority", 0, 9)
		e.Trace = r.optStrings("trace")
		e.Notify = r.optBool("notify", false)
		e.ResultTTL = r.optInt("result_ttl_ms", 1, maxInt, 0)
		e.UniqueKey, e.UniqueTTL = r.optKey("unique_key"), r.optCount("unique_ttl_ms", minInt, maxInt)
		e.UniqueUntil = r.optKey("unique_until")
		e.RateLimitKey, e.RateLimit = r.optKey("rate_limit_key"), r.optCount("rate_limit_ms", minInt, maxInt)
		e.DebounceKey, e.Debounce = r.optKey("debounce_key"), r.optCount("debounce_ms", minInt, maxInt)
		e.LimitKey, e.Limits = r.optKey("limit_key"), r.optStrings("limits")
		e.Tags, e.Meta = r.optTexts("tags"), r.optStrings("meta")
		e.ExpiresIn, e.ExpiresAt = r.optCount("expires_in_ms", minInt, maxInt), r.optTime("expires_at")
		e.Delay = r.optCount("delay_ms", minInt, maxInt)
	}
	return e, r.err
}

// ListJobs is the payload of LSJOB, which requests a page of a queue's jobs.
type ListJobs struct {
	Queue, Status string
	Page          int64 // from 1
	PageSize      int64 // 0: the server's default
}

// ParseListJobs parses an LSJOB. The error is a [*Violation].
func ParseListJobs(p Raw) (ListJobs, error) {
	r := newFieldReader(p, "q", "status", "page", "page_size")
	l := ListJobs{
		Queue: r.str("q"), Status: r.str("status"),
		Page: r.optInt("page", 1, maxCount, 1), PageSize: r.optInt("page_size", 1, maxCount, 0),
	}
	return l, r.err
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
