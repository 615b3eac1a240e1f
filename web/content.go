package web

import (
	"context"
	"io"
	"net/http"
	"time"
)

// Content is the response of a route that serves content.
type Content struct {
	Type    string // media type
	Version string // the ETag: differs if the content differs
	Reader  io.ReadSeeker
}

// serveContent responds with the content that a request opens, or with the range of its
// bytes that the request asks for. The client has writeTimeout for each part that the
// reader returns.
func (a *apiServer) serveContent(ctx context.Context, w http.ResponseWriter, r *http.Request, e *endpoint, q *Request) {
	content, err := e.Open(ctx, q)
	if err != nil {
		a.writeError(w, e, err)
		return
	}
	w.Header().Set("Content-Type", content.Type)
	w.Header().Set("ETag", `"`+content.Version+`"`)
	response := &contentWriter{ResponseWriter: w, status: http.StatusOK}
	http.ServeContent(response, r, "", time.Time{}, content.Reader)
	a.count(e, response.status)
}

// contentWriter writes a response, records its status, and extends the deadline with
// each write.
type contentWriter struct {
	http.ResponseWriter
	status int
}

func (w *contentWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *contentWriter) Write(data []byte) (int, error) {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(writeTimeout)) // as in writeReply
	return w.ResponseWriter.Write(data)
}
