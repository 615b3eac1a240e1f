package web

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
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
	if response.status == http.StatusRequestedRangeNotSatisfiable {
		size, _ := content.Reader.Seek(0, io.SeekEnd) // succeeded in ServeContent
		a.writeError(w, e, &api.Error{Code: api.CodeRange, Text: fmt.Sprintf("header Range is %q; must be a range of the %d bytes of the content, such as bytes=0-99", r.Header.Get("Range"), size)})
		return
	}
	a.count(e, response.status)
}

// Stream is the response of a route that is written as it is made.
type Stream struct {
	FileName string // under which a client may store it
	Reader   io.ReadCloser
}

// serveStream responds with the stream that a request opens. If the stream ends with an
// error, the connection is closed, so that no client takes the part that it has for the
// whole. The client has writeTimeout for each part that the reader returns.
func (a *apiServer) serveStream(ctx context.Context, w http.ResponseWriter, e *endpoint, q *Request) {
	stream, err := e.Stream(ctx, q)
	if err != nil {
		a.writeError(w, e, err)
		return
	}
	defer stream.Reader.Close()
	first := make([]byte, streamBuffer)
	n, err := io.ReadFull(stream.Reader, first) // before a response has begun
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		a.writeError(w, e, err)
		return
	}
	w.Header().Set("Content-Type", e.Media)
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": stream.FileName}))
	response := &contentWriter{ResponseWriter: w, status: e.Status}
	if _, err = response.Write(first[:n]); err == nil {
		_, err = io.CopyBuffer(response, stream.Reader, first)
	}
	if err != nil && ctx.Err() == nil {
		a.server.log.Warn("http response interrupted", "endpoint", e.Name, "err", err)
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	a.count(e, e.Status)
}

// streamBuffer is the size of the parts in which a stream is written.
const streamBuffer = 64 << 10

// contentWriter writes a response, records its status, and extends the deadline with
// each write. It drops the response to a range that has no byte of the content.
type contentWriter struct {
	http.ResponseWriter
	status int
}

func (w *contentWriter) WriteHeader(status int) {
	w.status = status
	if status != http.StatusRequestedRangeNotSatisfiable {
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *contentWriter) Write(data []byte) (int, error) {
	if w.status == http.StatusRequestedRangeNotSatisfiable {
		return len(data), nil
	}
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(writeTimeout)) // as in writeReply
	return w.ResponseWriter.Write(data)
}
