package rrq

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// Version is the protocol version of this package.
const Version = "2"

// MaxFrame is the largest payload of a frame, in bytes, in both directions.
const MaxFrame = 16 << 20

// maxKeptBuffer is the largest buffer, in bytes, that a connection keeps for the
// next message.
const maxKeptBuffer = 64 << 10

// ErrMalformed means that a frame is not a message of the protocol, or that a
// message cannot be encoded as one.
var ErrMalformed = errors.New("malformed message")

// TooLargeError means that a message exceeds [MaxFrame] and was not sent.
type TooLargeError = frame.TooLargeError

// Request asks a runner to run one handler.
type Request struct {
	RequestID string          `json:"request_id"`
	JobID     string          `json:"job_id"`
	Function  string          `json:"function_name"` // the handler's name
	Params    json.RawMessage `json:"params"`        // a JSON object; nil is {}
	Context   Context         `json:"context"`
}

// Context describes a job to its handler.
type Context struct {
	JobID       string            `json:"job_id"`
	Attempt     uint32            `json:"attempt"` // from 1
	EnqueueTime time.Time         `json:"enqueue_time"`
	QueueName   string            `json:"queue_name"`
	Deadline    time.Time         `json:"deadline"`            // zero: none
	Trace       map[string]string `json:"trace_context"`       // trace context of the producer; nil: none
	Correlation map[string]string `json:"correlation_context"` // nil: none
	WorkerID    string            `json:"worker_id"`
	// Fence increases with every dispatch of the yard. A handler can pass it to
	// a database that refuses stale writes. It is an extension of the protocol;
	// other runners ignore it.
	Fence uint64 `json:"fence"`
	// DispatchID is the request's id in the yard's history, "<job id>#<number>". It
	// is an extension, too. "": none.
	DispatchID string `json:"dispatch_id"`
}

// Statuses of an outcome.
const (
	Success = "success"
	Retry   = "retry"
	Timeout = "timeout"
	Error   = "error"
)

// Outcome is a runner's answer to a request.
type Outcome struct {
	JobID      string          `json:"job_id"`
	RequestID  string          `json:"request_id"`
	Status     string          `json:"status"`              // Success, Retry, Timeout or Error
	Result     json.RawMessage `json:"result"`              // nil: none, or null
	Fault      *Fault          `json:"-"`                   // nil: none
	RetryAfter *float64        `json:"retry_after_seconds"` // seconds, with Retry; nil: the yard's policy applies
}

// Fault describes why a handler failed.
type Fault struct {
	Message string
	Type    string // HandlerNotFound, Cancelled, TimedOut, or any other
	Code    string
	Details json.RawMessage // any JSON; nil: none
}

// Fault types with a defined meaning.
const (
	HandlerNotFound = "handler_not_found" // final: the job is not retried
	Cancelled       = "cancelled"
	TimedOut        = "timeout"
)

// Cancel asks a runner to stop the requests of a job.
type Cancel struct {
	JobID     string `json:"job_id"`
	RequestID string `json:"request_id"` // "": every request of the job
	HardKill  bool   `json:"hard_kill"`  // reserved; runners ignore it
}

// Types of an envelope.
const (
	typeRequest  = "request"
	typeResponse = "response"
	typeCancel   = "cancel"
)

// message is a decoded envelope. Exactly one of the pointers is set.
type message struct {
	request  *Request
	version  string // of the request or cancel
	outcome  *Outcome
	cancel   *Cancel
	envelope string // the envelope's type
}

// decode parses a frame's payload. Every error wraps [ErrMalformed].
func decode(payload []byte) (message, error) {
	if !utf8.Valid(payload) {
		return message{}, fmt.Errorf("%w: not UTF-8", ErrMalformed)
	}
	if inner := responsePayload(payload); inner != nil && !isNull(inner) {
		o, err := decodeOutcome(inner)
		if err == nil {
			return message{envelope: typeResponse, outcome: o}, nil
		}
		// The general path below returns the error, or accepts an unusual form.
	}
	var env struct {
		Type    string          `json:"type"`
		Payload json.RawMessage `json:"payload"`
	}
	if err := json.Unmarshal(payload, &env); err != nil {
		return message{}, malformed("envelope", err)
	}
	if isNull(env.Payload) {
		return message{}, fmt.Errorf("%w: envelope without payload", ErrMalformed)
	}
	m := message{envelope: env.Type}
	var err error
	switch env.Type {
	case typeRequest:
		m.request, m.version, err = decodeRequest(env.Payload)
	case typeResponse:
		m.outcome, err = decodeOutcome(env.Payload)
	case typeCancel:
		m.cancel, m.version, err = decodeCancel(env.Payload)
	default:
		err = fmt.Errorf("%w: unknown type %.40q", ErrMalformed, env.Type)
	}
	return m, err
}

func malformed(what string, err error) error {
	return fmt.Errorf("%w: %s: %v", ErrMalformed, what, err)
}

// isNull reports whether a value is absent or null.
func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

// nonNull returns a value, nil for null.
func nonNull(raw json.RawMessage) json.RawMessage {
	if isNull(raw) {
		return nil
	}
	return raw
}

// responseHead is the usual beginning of an answer. A space may follow each ':'
// and ','.
const responseHead = `{"type":"response","payload":`

// responsePayload returns what is between responseHead and the last '}' of b,
// nil if b does not have this form. So the most frequent message is decoded
// without its envelope. The result need not be JSON: b may have other keys
// after the payload.
func responsePayload(b []byte) []byte {
	at := 0 // in b
	for i := range len(responseHead) {
		if at < len(b) && b[at] == ' ' && i > 0 && (responseHead[i-1] == ':' || responseHead[i-1] == ',') {
			at++
		}
		if at == len(b) || b[at] != responseHead[i] {
			return nil
		}
		at++
	}
	if b[len(b)-1] != '}' {
		return nil
	}
	return b[at : len(b)-1]
}

// decodeOutcome parses a response's payload. A missing request id is accepted.
func decodeOutcome(payload []byte) (*Outcome, error) {
	var w struct {
		Outcome
		Error *struct {
			Message *string         `json:"message"`
			Type    json.RawMessage `json:"type"`
			Code    json.RawMessage `json:"code"`
			Details json.RawMessage `json:"details"`
		} `json:"error"`
	}
	if err := json.Unmarshal(payload, &w); err != nil {
		return nil, malformed("response", err)
	}
	switch w.Status {
	case Success, Retry, Timeout, Error:
	default:
		return nil, fmt.Errorf("%w: response with status %.40q", ErrMalformed, w.Status)
	}
	w.Result = nonNull(w.Result)
	if w.Error != nil {
		if w.Error.Message == nil {
			return nil, fmt.Errorf("%w: response with an error that has no message", ErrMalformed)
		}
		w.Fault = &Fault{
			Message: *w.Error.Message,
			Type:    lenientString(w.Error.Type),
			Code:    lenientString(w.Error.Code),
			Details: nonNull(w.Error.Details),
		}
	}
	return &w.Outcome, nil
}

// lenientString returns a JSON string's value, "" for null, and any other JSON
// as it is: a number as a fault's code should not cost the connection.
func lenientString(raw json.RawMessage) string {
	if isNull(raw) {
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// decodeRequest parses a request's payload. The string is the request's
// protocol version, which is not checked; it is Version if the request has none.
func decodeRequest(payload []byte) (*Request, string, error) {
	w := struct {
		Request
		Version string   `json:"protocol_version"`
		Context *Context `json:"context"` // takes the place of Request's, to detect that it is missing
	}{Version: Version}
	if err := json.Unmarshal(payload, &w); err != nil {
		return nil, "", malformed("request", err)
	}
	if w.RequestID == "" || w.JobID == "" || w.Context == nil {
		return nil, "", fmt.Errorf("%w: request without request_id, job_id or context", ErrMalformed)
	}
	if len(w.Params) > 0 && w.Params[0] != '{' {
		return nil, "", fmt.Errorf("%w: request with params that are not an object", ErrMalformed)
	}
	if w.Params == nil {
		w.Params = json.RawMessage("{}")
	}
	w.Request.Context = *w.Context
	return &w.Request, w.Version, nil
}

// decodeCancel parses a cancel's payload. The string is the cancel's protocol
// version, which is not checked; it is Version if the cancel has none.
func decodeCancel(payload []byte) (*Cancel, string, error) {
	w := struct {
		Cancel
		Version string `json:"protocol_version"`
	}{Version: Version}
	if err := json.Unmarshal(payload, &w); err != nil {
		return nil, "", malformed("cancel", err)
	}
	return &w.Cancel, w.Version, nil
}
