package edge

import (
	"context"
	"fmt"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// contentOverhead is an upper limit, in bytes, of what the answer to a CONTENT adds to the
// part of the value.
const contentOverhead = 1 << 10

// handleContent answers with a part of a job's result or payload, so that a client can
// read a value that does not fit into a frame.
func (q queries) handleContent(ctx context.Context, request overhop.ContentRequest) (overhop.Raw, error) {
	if request.Value != overhop.ContentResult && request.Value != overhop.ContentPayload {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("value is %.40q; must be %q or %q", request.Value, overhop.ContentResult, overhop.ContentPayload)}
	}
	view, err := q.require(ctx, request.JID, q.cluster.Peek)
	if err != nil {
		return nil, err
	}
	size := min(overhop.MaxContentPart, q.server.cfg.Wire.MaxEnvelope-contentOverhead)
	part, err := q.cluster.Content(ctx, view.ID, request.Value == overhop.ContentResult, request.Offset, int64(size))
	if err != nil {
		return nil, err
	}
	encoding := "json"
	if part.Msgpack {
		encoding = "msgpack"
	}
	return overhop.Fields{
		"jid": request.JID, "value": request.Value, "size": part.Size, "encoding": encoding, "version": part.Version,
		"offset": request.Offset, "data": part.Data,
	}.Raw(), nil
}
