package jobview

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Content is the result or the params of a job. A large one is read in parts.
type Content struct {
	ID      job.ID
	Msgpack bool // else JSON
	Size    int64
	Version string // differs if the content differs

	data []byte // all of it; nil: it is in a blob
	view *Viewer
	blob blobWindow
}

// blobWindow is the part of a blob that contains a value.
type blobWindow struct {
	store  streams.BlobStore
	blob   job.Blob
	start  int64 // offset in the blob
	size   int64 // of the value in the blob, in bytes
	base64 bool  // the value is encoded in base64
}

// newContent returns a content that is in memory.
func newContent(id job.ID, value job.Value) *Content {
	sum := sha256.Sum256(value.Data)
	return &Content{ID: id, Msgpack: value.Msgpack, Size: int64(len(value.Data)), Version: hex.EncodeToString(sum[:16]), data: value.Data}
}

// Part returns size bytes that begin at offset, or fewer at the end.
func (c *Content) Part(ctx context.Context, offset, size int64) ([]byte, error) {
	if offset = max(offset, 0); offset >= c.Size {
		return nil, nil
	}
	size = min(size, c.Size-offset)
	if c.data != nil {
		return c.data[offset : offset+size], nil
	}
	w := &c.blob
	if !w.base64 {
		part, err := c.load(ctx, w.start+offset, size)
		return part, err
	}
	group := offset / 3 // of three bytes, each encoded as four
	from, to := 4*group, min(4*((offset+size+2)/3), w.size)
	text, err := c.load(ctx, w.start+from, to-from)
	if err != nil {
		return nil, err
	}
	decoded, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil {
		return nil, fmt.Errorf("payload of job %s: %w", c.ID, err)
	}
	return decoded[offset-3*group:][:size], nil
}

// load returns size bytes of the blob.
func (c *Content) load(ctx context.Context, offset, size int64) ([]byte, error) {
	data, err := c.view.Reader.LoadBlobRange(ctx, c.blob.store, c.blob.blob, offset, size)
	switch {
	case errors.Is(err, streams.ErrNotStored):
		return nil, goneError(c.ID, "content_gone", c.Size, "its stream no longer holds it")
	case err != nil:
		return nil, ReadError("content", c.ID, err)
	}
	return data, nil
}

// goneError returns the error for a value of a job that existed and can no longer be
// read. code is a word for programs, size is 0 if it is not known.
func goneError(id job.ID, code string, size int64, reason string) error {
	data, _ := json.Marshal(struct { // cannot fail
		ID     job.ID `json:"id"`
		Reason string `json:"reason"`
		Bytes  int64  `json:"bytes,omitempty"`
	}{id, code, size})
	return &api.Error{Code: api.CodeGone, Text: fmt.Sprintf("%s: job %s, %d bytes: %s", code, id, size, reason), Data: data}
}

// Result returns the result of a job that has ended. It is an error if the job has not
// ended, or if there is no result, or no longer.
func (v *Viewer) Result(ctx context.Context, id job.ID) (*Content, error) {
	view, ref, err := v.ledgerView(ctx, id)
	if err == nil && !view.State.Ended() { // the local ledger may lag
		if err = v.ReadBarrier(ctx); err == nil {
			view, ref, err = v.ledgerView(ctx, id)
		}
	}
	if err != nil {
		return nil, err
	}
	if !view.State.Ended() {
		return nil, &api.Error{Code: api.CodeConflict, Text: fmt.Sprintf("job %s is %s and has no result before it ends; 'yardmaster job wait' waits for that", id, view.State)}
	}
	blob, err := v.findResult(ctx, &view, ref)
	switch {
	case err != nil:
		return nil, err
	case view.ResultGone == job.ResultDropped:
		return nil, goneError(id, "result_dropped", view.ResultSize, "it could not be stored: "+view.ResultReason)
	case view.ResultGone == job.ResultExpired:
		return nil, goneError(id, "result_expired", view.ResultSize, "its retention time has passed")
	case view.ResultGone != "":
		return nil, evictedError(&view)
	case blob == nil && len(view.Result.Data) == 0:
		return nil, &api.Error{Code: api.CodeNotFound, Text: fmt.Sprintf("job %s is %s and has no result; 'yardmaster job show' shows how it ended", id, view.State)}
	case blob == nil:
		return newContent(id, view.Result), nil
	}
	c := &Content{
		ID: id, Msgpack: view.Result.Msgpack, Size: blob.Size, Version: blob.SHA256, view: v,
		blob: blobWindow{store: streams.ResultBlobs, blob: *blob, size: blob.Size},
	}
	// Reading the beginning finds out whether the result was evicted, before a response
	// has begun.
	if _, err = v.Reader.LoadBlobRange(ctx, streams.ResultBlobs, *blob, 0, 1); errors.Is(err, streams.ErrNotStored) {
		return nil, evictedError(&view)
	}
	if err != nil {
		return nil, ReadError("result", id, err)
	}
	return c, nil
}

// evictedError returns the error for a result that its streams no longer hold.
func evictedError(view *job.View) error {
	return goneError(view.ID, "result_evicted", view.ResultSize, "the streams of results keep only the newest ones; 'yardmaster retention set results.bytes=<size> results.age=<time>' makes them keep more, and a job that is enqueued again has a new result")
}

// Params returns the params of a job, or its payload if it has no params.
func (v *Viewer) Params(ctx context.Context, id job.ID) (*Content, error) {
	view, _, err := v.ledgerView(ctx, id)
	if err != nil {
		return nil, err
	}
	record, err := v.LoadRecord(ctx, view.Position, view.ID)
	if isGone(err) {
		return nil, goneError(id, "payload_gone", 0, "the body is no longer stored")
	}
	if err != nil {
		return nil, ReadError("body", id, err)
	}
	spec, err := job.ParseSpec(record)
	if err != nil {
		return nil, &api.Error{Code: api.CodeConflict, Text: fmt.Sprintf("job %s has no params: its record does not describe a job: %v", id, err)}
	}
	if spec.Blob != nil {
		return v.largeParams(ctx, id, *spec.Blob)
	}
	value := job.Value{Data: spec.Params}
	if len(spec.Params) == 0 {
		value = job.Value{Data: spec.Payload, Msgpack: true}
	}
	if len(value.Data) == 0 {
		return nil, noParamsError(id)
	}
	return newContent(id, value), nil
}

func noParamsError(id job.ID) error {
	return &api.Error{Code: api.CodeNotFound, Text: fmt.Sprintf("job %s has neither params nor a payload; 'yardmaster job show' shows the job", id)}
}

// maxWindows bounds Viewer.windows.
const maxWindows = 1024

// largeParams returns the params in a large body. It reads all of the body once, to find
// where they are, and remembers that.
func (v *Viewer) largeParams(ctx context.Context, id job.ID, blob job.Blob) (*Content, error) {
	v.mu.Lock()
	known, ok := v.windows[blob.Name]
	v.mu.Unlock()
	if ok {
		c := known
		c.ID, c.view = id, v
		return &c, nil
	}
	v.largeBody.Lock() // one large body in memory at a time
	defer v.largeBody.Unlock()
	body, err := v.Reader.LoadBlob(ctx, streams.BodyBlobs, blob)
	if isGone(err) {
		return nil, goneError(id, "payload_gone", blob.Size, "the body is no longer stored")
	}
	if err != nil {
		return nil, ReadError("body", id, err)
	}
	var fields struct {
		Params  json.RawMessage `json:"params"`
		Payload json.RawMessage `json:"payload_msgpack"`
	}
	if err := json.Unmarshal(body, &fields); err != nil {
		return nil, fmt.Errorf("body of job %s: %w", id, err)
	}
	c := Content{Version: blob.SHA256, blob: blobWindow{store: streams.BodyBlobs, blob: blob}}
	text := fields.Params
	if len(text) == 0 || string(text) == "null" {
		if text = bytes.Trim(fields.Payload, `"`); len(text) == 0 || string(text) == "null" {
			return nil, noParamsError(id)
		}
		if bytes.ContainsRune(text, '\\') { // escaped, so that its parts cannot be decoded
			return v.escapedPayload(id, body)
		}
		c.Msgpack, c.blob.base64 = true, true
		c.Size = int64(base64.StdEncoding.DecodedLen(len(text)) - bytes.Count(text, []byte("=")))
	} else {
		c.Size = int64(len(text))
	}
	c.blob.start, c.blob.size = int64(bytes.Index(body, text)), int64(len(text))
	v.mu.Lock()
	if v.windows == nil || len(v.windows) >= maxWindows {
		v.windows = make(map[string]Content)
	}
	v.windows[blob.Name] = c
	v.mu.Unlock()
	c.ID, c.view = id, v
	return &c, nil
}

// escapedPayload returns the payload in a body, in memory.
func (v *Viewer) escapedPayload(id job.ID, body []byte) (*Content, error) {
	spec, err := job.ParseSpec(body)
	if err != nil {
		return nil, fmt.Errorf("body of job %s: %w", id, err)
	}
	return newContent(id, job.Value{Data: spec.Payload, Msgpack: true}), nil
}

// isGone reports whether err means that a body is no longer stored, or its lane no longer
// exists, which readiness reports.
func isGone(err error) bool {
	return errors.Is(err, streams.ErrNotStored) || errors.Is(err, streams.ErrStreamMissing) || errors.Is(err, streams.ErrStreamMismatch)
}
