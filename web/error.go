package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// Error is an error response.
type Error struct {
	Status     int           // HTTP status, also the code in the body
	Text       string        // for people
	RetryAfter time.Duration // 0 means unknown
	Data       []byte        // JSON with details; nil if there are none
}

func (r *Error) Error() string { return r.Text }

// errorReply is the body of an error response.
type errorReply struct {
	Error errorBody `json:"error"`
}

type errorBody struct {
	Code       string          `json:"code"` // the status, as over NATS
	Message    string          `json:"message"`
	RetryAfter int64           `json:"retry_after_ms,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"`
}

// writeError sends an error response. An err that is not an [*Error] has the
// status 500.
func writeError(w http.ResponseWriter, err error) {
	var r *Error
	if !errors.As(err, &r) {
		r = &Error{Status: http.StatusInternalServerError, Text: err.Error()}
	}
	if r.RetryAfter > 0 { // in whole seconds, rounded up so that a client does not retry too early
		w.Header().Set("Retry-After", strconv.FormatInt(int64((r.RetryAfter+time.Second-1)/time.Second), 10))
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // safe: the content type is not HTML
	if enc.Encode(errorReply{errorBody{strconv.Itoa(r.Status), r.Text, r.RetryAfter.Milliseconds(), r.Data}}) != nil {
		body.Reset()
		body.WriteString("{}")
	}
	writeReply(w, r.Status, bytes.TrimSpace(body.Bytes()))
}

// errorStatus returns the status that writeError uses for err.
func errorStatus(err error) int {
	var r *Error
	if errors.As(err, &r) {
		return r.Status
	}
	return http.StatusInternalServerError
}

// writeReply sends a JSON response, with a deadline of writeTimeout.
func writeReply(w http.ResponseWriter, status int, body []byte) {
	// Errors are ignored: a writer without deadlines is a test's, and a client
	// that does not read the response cannot be notified.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
