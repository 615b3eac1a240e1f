package web

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// How much a request may bring.
const (
	maxBody      = 1 << 20   // bytes
	maxLargeBody = 32 << 20  // bytes, of a job
	bodyMemory   = 128 << 20 // bytes of all bodies that are held at once
	bodyStep     = 32 << 10  // the first piece of memory that a body gets; it doubles
)

// expect bounds the time in which a request's body must arrive, also one that
// nobody reads: before the server ends an answer it waits for the rest.
func (s *Server) expect(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(s.bodyTime)) // a writer that knows none is a test's
	}
}

// read takes a request's body in. Memory is taken as bytes arrive, not as they
// are announced; release gives it back, also after an error, and may be called
// again.
func (s *Server) read(w http.ResponseWriter, r *http.Request, most int64) (body []byte, release func(), err error) {
	var taken int64
	release = sync.OnceFunc(func() { s.memory.give(taken) })
	if r.ContentLength == 0 {
		return nil, release, nil
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		return nil, release, &Refusal{Status: http.StatusUnsupportedMediaType, Text: fmt.Sprintf("Content-Encoding is %q; send JSON as it is", encoding)}
	}
	tooLarge := &Refusal{Status: http.StatusRequestEntityTooLarge, Text: fmt.Sprintf("body of more than %d bytes", most)}
	if r.ContentLength > most {
		return nil, release, tooLarge
	}
	for {
		if len(body) == cap(body) {
			grown := max(2*int64(cap(body)), bodyStep)
			if r.ContentLength > 0 {
				grown = min(grown, r.ContentLength+1) // one more, to see its end
			}
			if !s.memory.take(grown - int64(cap(body))) {
				return nil, release, &Refusal{Status: http.StatusServiceUnavailable, Text: "too many large requests at once", RetryAfter: time.Second}
			}
			taken += grown - int64(cap(body))
			body = append(make([]byte, 0, grown), body...)
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > most:
			return nil, release, tooLarge
		case errors.Is(err, io.EOF):
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // else it would look as if the client had gone
			return body, release, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, release, &Refusal{Status: http.StatusRequestTimeout, Text: fmt.Sprintf("the body did not arrive within %s", s.bodyTime)}
		case err != nil:
			return nil, release, &Refusal{Status: http.StatusBadRequest, Text: "the body did not arrive: " + err.Error()}
		}
	}
}
