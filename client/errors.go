package client

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// The kinds of an [Error], for errors.Is. Any other error is a failure of a node, which logs
// the reason.
var (
	ErrInvalid      = errors.New("the request is invalid")
	ErrUnauthorized = errors.New("the token is missing or wrong")
	ErrNotFound     = errors.New("no such queue, job or other object")
	ErrConflict     = errors.New("the request conflicts with the state of the object")
	ErrGone         = errors.New("the object is no longer stored")
	ErrTooLarge     = errors.New("the request or its answer is too large")
	ErrRateLimited  = errors.New("the rate limit key is held")
	ErrUnavailable  = errors.New("the cluster cannot do that at the moment")
)

// kinds are the errors of errors.Is by HTTP status.
var kinds = map[int]error{
	400: ErrInvalid, 401: ErrUnauthorized, 403: ErrUnauthorized, 404: ErrNotFound, 409: ErrConflict, 410: ErrGone,
	413: ErrTooLarge, 429: ErrRateLimited, 503: ErrUnavailable, 504: ErrUnavailable,
}

// Error is the cluster's refusal of a request.
type Error struct {
	// Code is a stable word, for example QUEUE_NOT_FOUND, which docs/reference/overhop.md
	// lists, or an HTTP status if the API refused the request.
	Code string
	// Message describes the reason for people.
	Message string
	// RetryAfter is how long to wait before the same request may succeed; 0 means
	// that waiting does not help.
	RetryAfter time.Duration
	// JobID is the job that holds the unique key, or had the key, if Code is DUPLICATE_JOB
	// or DUPLICATE_OF_REMOVED.
	JobID string
	// Path is a JSON Pointer to the part of the params that does not match the schema of the
	// queue, if that is why the job was refused.
	Path string
	// Query is what is wrong with the query of the request, if that is why it was refused.
	Query *api.QueryProblem

	status int // of HTTP; 0 means 500
	err    error
}

func (e *Error) Error() string { return cmp.Or(e.Message, e.Code) }

// Unwrap returns the error of the protocol.
func (e *Error) Unwrap() error { return e.err }

// Is reports whether target is the kind of e, such as [ErrNotFound].
func (e *Error) Is(target error) bool { return target != nil && kinds[e.status] == target }

// statuses maps the protocol's codes to HTTP statuses. Other codes mean 500.
var statuses = map[overhop.Code]int{
	overhop.CodeUnauthorized:  401,
	overhop.CodeQueueNotFound: 404, overhop.CodeJobNotFound: 404, overhop.CodeContentNotFound: 404,
	overhop.CodeContentGone: 410,
	overhop.CodeSystemQueue: 400, overhop.CodeInvalidQueueName: 400, overhop.CodeInvalidJobID: 400,
	overhop.CodeInvalidJobPayload: 400, overhop.CodeInvalidStatusFilter: 400,
	overhop.CodeQueueNotEmpty: 409, overhop.CodeQueuePaused: 409, overhop.CodeQueueRunning: 409, overhop.CodeDuplicateQueue: 409,
	overhop.CodeQueuePool: 409, overhop.CodeDuplicateSub: 409, overhop.CodeJobNotRemovable: 409, overhop.CodeJobNotActive: 409,
	overhop.CodeJobNotPending: 409, overhop.CodeAlreadyTerminal: 409, overhop.CodeDuplicateJob: 409, overhop.CodeRemovedJob: 409,
	overhop.CodeResultTooLarge: 413, overhop.CodeResponseTooLarge: 413,
	overhop.CodeRateLimited: 429, overhop.CodeUnavailable: 503, overhop.CodeDraining: 503,
}

// refusalOf converts err to an [*Error] if it is or wraps a refusal of the cluster. It returns
// any other error, and nil, unchanged.
func refusalOf(err error) error {
	if _, ok := errors.AsType[*Error](err); ok || err == nil {
		return err
	}
	if large, ok := errors.AsType[*frame.TooLargeError](err); ok {
		return &Error{
			Code: string(overhop.CodeResultTooLarge), status: 413, err: err,
			Message: fmt.Sprintf("the request has %d bytes, and the node takes at most %d: wire.max_envelope_size_bytes of its configuration; or enqueue over HTTP", large.Size, large.Limit),
		}
	}
	if refusal, ok := errors.AsType[*api.Error](err); ok {
		refused := &Error{Code: refusal.Code, Message: refusal.Text, RetryAfter: refusal.RetryAfter, status: refusal.Status(), err: err}
		if refusal.Reason() == api.ReasonNewQueues { // no rate limit key is held: the same request succeeds later
			refused.status = 503
		}
		refused.readData(refusal.Data)
		return refused
	}
	refusal, ok := errors.AsType[*overhop.RemoteError](err)
	if !ok {
		return err
	}
	refused := &Error{Code: string(refusal.Code), Message: refusal.Message, status: statuses[refusal.Code], err: err}
	if _, alone := err.(*overhop.RemoteError); !alone { // the context has ended after it
		refused.Message = err.Error()
	}
	refused.JobID, _ = refusal.Details.Get("jid").Str()
	refused.Path, _ = refusal.Details.Get("path").Str()
	if ms, ok := refusal.Details.Get("retry_after_ms").Int(); ok {
		refused.RetryAfter = time.Duration(ms) * time.Millisecond
	}
	if status, ok := refusal.Details.Get("status").Int(); ok && refusal.Code == overhop.CodeAPIError {
		refused.Code, refused.status = strconv.FormatInt(status, 10), int(status)
		data, _ := refusal.Details.Get("data" + overhop.JSONSuffix).Bin()
		refused.readData(data)
	}
	return refused
}

// readData sets the fields that an error of the API has as JSON, if there is any.
func (e *Error) readData(data []byte) {
	var details struct {
		ID   string `json:"id"`
		Path string `json:"path"`
	}
	if json.Unmarshal(data, &details) == nil {
		e.JobID, e.Path = details.ID, details.Path
	}
	e.Query = (&api.Error{Data: data}).QueryProblem()
}
