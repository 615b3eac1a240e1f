package httproutes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/server/jobview"
	"github.com/yardmaster-dev/yardmaster/web"
)

// openContent returns a handler that responds with the content that open returns.
func openContent(open func(context.Context, *api.ContentRequest) (*jobview.Content, error)) func(context.Context, *web.Request) (*web.Content, error) {
	return func(ctx context.Context, req *web.Request) (*web.Content, error) {
		var named api.ContentRequest
		if err := json.Unmarshal(req.Data, &named); err != nil { // package web has made and checked it
			return nil, cluster.AsAPIError(err)
		}
		content, err := open(cluster.WithSender(ctx, senderOf(req)), &named)
		if err != nil {
			return nil, cluster.AsAPIError(err)
		}
		mediaType := "application/json"
		if content.Msgpack {
			mediaType = "application/msgpack"
		}
		return &web.Content{Type: mediaType, Version: content.Version, Reader: &contentReader{ctx: ctx, content: content}}, nil
	}
}

// openBackup starts a backup and responds with the file.
func (h *Handlers) openBackup(ctx context.Context, req *web.Request) (*web.Stream, error) {
	if body := bytes.TrimSpace(req.Data); len(body) > 0 && string(body) != "{}" {
		return nil, &api.Error{Code: api.CodeInvalid, Text: "a backup takes no settings: send no body"}
	}
	file, err := h.Backup(ctx)
	if err != nil {
		return nil, cluster.AsAPIError(err)
	}
	return &web.Stream{FileName: time.Now().UTC().Format("yardmaster-20060102T150405Z.tar"), Reader: file}, nil
}

// contentReader reads a content part by part.
type contentReader struct {
	ctx     context.Context // of the request
	content *jobview.Content
	offset  int64
	part    []byte // read, beginning at offset
}

// Read implements [io.Reader].
func (r *contentReader) Read(buffer []byte) (int, error) {
	if r.offset >= r.content.Size {
		return 0, io.EOF
	}
	if len(r.part) == 0 {
		size := api.MaxContentPart - r.offset%api.MaxContentPart // up to the end of a chunk
		part, err := r.content.Part(r.ctx, r.offset, size)
		if err != nil {
			return 0, err
		}
		r.part = part
	}
	n := copy(buffer, r.part)
	r.part, r.offset = r.part[n:], r.offset+int64(n)
	return n, nil
}

// Seek implements [io.Seeker].
func (r *contentReader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.offset
	case io.SeekEnd:
		offset += r.content.Size
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning")
	}
	if offset != r.offset {
		r.offset, r.part = offset, nil
	}
	return offset, nil
}
