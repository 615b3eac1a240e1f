package web

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
)

// writeError sends an error response. An err that is not an [*api.Error] has the
// status 500.
func writeError(w http.ResponseWriter, err error) {
	var r *api.Error
	if !errors.As(err, &r) {
		r = &api.Error{Code: api.CodeInternal, Text: err.Error()}
	}
	if r.RetryAfter > 0 { // in whole seconds, rounded up so that a client does not retry too early
		w.Header().Set("Retry-After", strconv.FormatInt(int64((r.RetryAfter+time.Second-1)/time.Second), 10))
	}
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // safe: the content type is not HTML
	if enc.Encode(api.ErrorReply{Error: api.ErrorBody{Code: strconv.Itoa(r.Status()), Message: r.Text, RetryAfter: r.RetryAfter.Milliseconds(), Data: r.Data}}) != nil {
		body.Reset()
		body.WriteString("{}")
	}
	writeReply(w, r.Status(), bytes.TrimSpace(body.Bytes()))
}

// errorStatus returns the status that writeError uses for err.
func errorStatus(err error) int {
	var r *api.Error
	if errors.As(err, &r) {
		return r.Status()
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
