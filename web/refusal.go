package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"
)

// Refusal is why a question has no answer: the status of HTTP, which is also
// the code of the answer, and a text for people.
type Refusal struct {
	Status     int
	Text       string
	RetryAfter time.Duration // 0: not known
	Data       []byte        // JSON of what is known all the same; nil: nothing
}

func (r *Refusal) Error() string { return r.Text }

// errorAnswer is how a refusal travels.
type errorAnswer struct {
	Error errorBody `json:"error"`
}

type errorBody struct {
	Code       string          `json:"code"` // the status, as over NATS
	Message    string          `json:"message"`
	RetryAfter int64           `json:"retry_after_ms,omitempty"`
	Data       json.RawMessage `json:"data,omitempty"` // what is known all the same
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, err error) {
	var r *Refusal
	if !errors.As(err, &r) {
		r = &Refusal{Status: http.StatusInternalServerError, Text: err.Error()}
	}
	if r.RetryAfter > 0 { // whole seconds, rounded up: who comes too early comes twice
		w.Header().Set("Retry-After", strconv.FormatInt(int64((r.RetryAfter+time.Second-1)/time.Second), 10))
	}
	var body bytes.Buffer
	in := json.NewEncoder(&body)
	in.SetEscapeHTML(false) // it is read by people, and no browser takes it for a page
	if in.Encode(errorAnswer{errorBody{strconv.Itoa(r.Status), r.Text, r.RetryAfter.Milliseconds(), r.Data}}) != nil {
		body.Reset()
		body.WriteString("{}")
	}
	write(w, r.Status, bytes.TrimSpace(body.Bytes()))
}

// statusOf is the status of an error's answer.
func statusOf(err error) int {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Status
	}
	return http.StatusInternalServerError
}

// write sends an answer to somebody who takes it in time.
func write(w http.ResponseWriter, status int, body []byte) {
	// Not all writers know deadlines, and who does not take the answer has gone:
	// neither is an error that anybody could hear of.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTime))
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
