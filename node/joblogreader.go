package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"encoding/json"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Bounds of a reply with a job's log.
const (
	maxLogLines = 1000
	maxLogBytes = 256 << 10
)

func (n *Node) handleJobLogs(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[api.LogRequest](r)
	if err != nil {
		return nil, err
	}
	if q.ID == "" {
		return nil, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	}
	if q.Lines < 0 || q.Lines > maxLogLines {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("lines is %d; must be 1 to %d", q.Lines, maxLogLines)}
	}
	id, err := n.viewer.Locate(ctx, q.ID, q.Queue)
	unknown := errors.Is(err, job.ErrJobNotFound) && id != job.ID{} // its log may still exist
	if err != nil && !unknown {
		return nil, err
	}
	reply, readErr := n.readLog(ctx, id, q.Lines)
	if readErr != nil {
		return nil, readErr
	}
	if unknown && len(reply.Lines) == 0 {
		return nil, err
	}
	return reply, nil
}

// readLog reads a job's log from its beginning and returns the last lines.
func (n *Node) readLog(ctx context.Context, id job.ID, limit int) (api.LogReply, error) {
	if limit == 0 {
		limit = maxLogLines
	}
	reply := api.LogReply{ID: id, Lines: []json.RawMessage{}, Next: 1}
	size := 0
	for {
		pages, err := n.cluster.Reader.ReadLog(ctx, id, reply.Next)
		if err != nil {
			return reply, &job.UnavailableError{Reason: "the job's log cannot be read now: " + err.Error(), RetryAfter: 500 * time.Millisecond}
		}
		if len(pages) == 0 {
			return reply, nil
		}
		for _, p := range pages {
			for line := range bytes.SplitSeq(bytes.TrimSuffix(p.Body, []byte("\n")), []byte("\n")) {
				reply.Lines = append(reply.Lines, line)
				size += len(line)
			}
			reply.Next = p.Seq + 1
		}
		for len(reply.Lines) > limit || size > maxLogBytes && len(reply.Lines) > 1 {
			size -= len(reply.Lines[0])
			reply.Lines = reply.Lines[1:]
			reply.More = true
		}
	}
}
