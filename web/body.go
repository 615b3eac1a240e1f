package web

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Limits of request bodies.
const (
	maxBody      = 1 << 20   // bytes
	maxLargeBody = 32 << 20  // bytes, of a job
	bodyMemory   = 128 << 20 // bytes, of all bodies in memory
	bodyStep     = 32 << 10  // bytes, initial buffer of a body; it doubles as it fills
)

// setBodyDeadline sets the deadline by which a request's body must have arrived. It also
// applies to a body that no handler reads, because the HTTP server reads the rest of it
// before it completes a response.
func (s *Server) setBodyDeadline(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyTimeout)) // fails only for writers of tests
	}
}

// readBody returns a request's body of at most limit bytes. It takes memory from the
// server's budget as bytes arrive, not as they are announced. The caller must call
// release, also after an error, to return the memory; it may be called more than once.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request, limit int64) (body []byte, release func(), err error) {
	var taken int64
	release = sync.OnceFunc(func() { s.memory.release(taken) })
	if r.ContentLength == 0 {
		return nil, release, nil
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, release, &api.Error{Code: api.CodeUnsupportedMedia, Text: fmt.Sprintf("Content-Encoding is %q; send JSON without an encoding", encoding)}
	}
	tooLarge := &api.Error{Code: api.CodeTooLarge, Text: fmt.Sprintf("body of more than %d bytes", limit)}
	if r.ContentLength > limit {
		return nil, release, tooLarge
	}
	for {
		if len(body) == cap(body) {
			grown := max(2*int64(cap(body)), bodyStep)
			if r.ContentLength > 0 {
				grown = min(grown, r.ContentLength+1) // one more byte, to detect the end
			}
			if !s.memory.acquire(grown - int64(cap(body))) {
				return nil, release, &api.Error{Code: api.CodeUnavailable, Text: "too many large requests at once", RetryAfter: time.Second}
			}
			taken += grown - int64(cap(body))
			body = append(make([]byte, 0, grown), body...)
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > limit:
			return nil, release, tooLarge
		case errors.Is(err, io.EOF):
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // a passed deadline would cancel the request's context
			return body, release, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, release, &api.Error{Code: api.CodeTimeout, Text: fmt.Sprintf("the body did not arrive within %s", duration.Format(s.bodyTimeout))}
		case err != nil:
			return nil, release, &api.Error{Code: api.CodeInvalid, Text: "the body did not arrive: " + err.Error()}
		}
	}
}
