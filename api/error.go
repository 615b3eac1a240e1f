package api

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// The codes of an [Error]: HTTP status codes as text, the same over NATS and HTTP.
const (
	CodeInvalid     = "400" // the request is malformed
	CodeForbidden   = "403" // the user may not use the queue; over HTTP also: the role does not allow the request, or it comes from a page of another site
	CodeNotFound    = "404" // the object does not exist
	CodeTimeout     = "408" // the outcome did not arrive in time
	CodeConflict    = "409" // the request conflicts with the current state
	CodeGone        = "410" // the object is no longer known
	CodeTooLarge    = "413" // the request or the reply is too large
	CodeLimited     = "429" // the rate limit key is held, or the user may make no more queues now; RetryAfter is until then
	CodeInternal    = "500" // the node failed
	CodeUnavailable = "503" // not possible at the moment; retry after RetryAfter
	CodeUnknown     = "504" // it is unknown whether it was done: repeat it under the same key
)

// The codes of errors over HTTP only.
const (
	CodeUnauthorized     = "401" // the token is missing or wrong
	CodeMethodNotAllowed = "405" // the path does not allow the method
	CodeUnsupportedMedia = "415" // the body has an encoding
	CodeRange            = "416" // the range has no byte of the content
)

// Error is the error of a request: a code for programs and a text for people.
type Error struct {
	// Code is one of the Code constants. A newer node may send others, which are
	// HTTP status codes too.
	Code string
	// Text states what failed, why, and what to do.
	Text string
	// RetryAfter is how long to wait before the request is repeated; 0 means
	// unknown.
	RetryAfter time.Duration
	// Data is JSON with details, such as the id of the job; nil means none.
	Data []byte
}

// Error returns the text and the code.
func (e *Error) Error() string { return fmt.Sprintf("%s (%s)", e.Text, e.Code) }

// Status returns the HTTP status of the error: its code, or 500 if that is not the
// status of an error.
func (e *Error) Status() int {
	status, err := strconv.Atoi(e.Code)
	if err != nil || status < 400 || status > 599 {
		return 500
	}
	return status
}

// Reply returns the JSON of an [ErrorReply] for the error.
func (e *Error) Reply() []byte {
	body, err := job.EncodeJSON(ErrorReply{ErrorBody{Code: strconv.Itoa(e.Status()), Message: e.Text, RetryAfter: e.RetryAfter.Milliseconds(), Data: e.Data}})
	if err != nil {
		return []byte("{}") // Data is not JSON
	}
	return body
}

// Reasons in the Data of errors, see [Error.Reason].
const (
	ReasonIDConflict = "id_conflict" // a job of another queue has the id
	ReasonNewQueues  = "new_queues"  // the user has made as many queues within a minute as it may
	reasonQuery      = "query"       // the query of the request is wrong
)

// Reason returns the word in Data that tells programs why the request was refused, "" if it has
// none.
func (e *Error) Reason() string {
	var data struct {
		Reason string `json:"reason"`
	}
	if json.Unmarshal(e.Data, &data) != nil {
		return ""
	}
	return data.Reason
}

// QueryProblem is what is wrong with a query, and where. It is in the Data of the [Error] of a
// request with such a query, beside "reason": "query".
type QueryProblem struct {
	Offset  int    `json:"offset"` // of the part that is wrong, in bytes
	Length  int    `json:"length"` // 0 at the end of the query
	Problem string `json:"problem"`
	Advice  string `json:"advice"` // what to write instead
}

// InvalidQuery returns the error of a request with a query that is wrong.
func InvalidQuery(text string, p QueryProblem) *Error {
	data, _ := json.Marshal(struct {
		Reason string `json:"reason"`
		QueryProblem
	}{reasonQuery, p}) // cannot fail
	return &Error{Code: CodeInvalid, Text: text, Data: data}
}

// QueryProblem returns what is wrong with the query of the request; nil if the error has another
// reason.
func (e *Error) QueryProblem() *QueryProblem {
	var data struct {
		Reason string `json:"reason"`
		QueryProblem
	}
	if json.Unmarshal(e.Data, &data) != nil || data.Reason != reasonQuery {
		return nil
	}
	return &data.QueryProblem
}

// ErrorReply is the body of an error reply over HTTP and NATS.
type ErrorReply struct {
	Error ErrorBody `json:"error"`
}

// ErrorBody is an [Error] in an [ErrorReply].
type ErrorBody struct {
	Code       string          `json:"code"` // the status
	Message    string          `json:"message"`
	RetryAfter int64           `json:"retry_after_ms,omitempty"` // 0 means unknown
	Data       json.RawMessage `json:"data,omitempty"`
}
