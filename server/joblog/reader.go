package joblog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Bounds of a reply with a job's log.
const (
	maxLogLines = 1000
	maxLogBytes = 256 << 10
)

// Reader answers requests for the logs of jobs. All fields are required.
type Reader struct {
	// FindJob returns the id of a job. With [job.ErrJobNotFound], or a [*job.UnavailableError] if that
	// is not certain, it returns the id that name would have, if it determines one.
	FindJob func(ctx context.Context, name, queue string) (job.ID, error)
	// Read returns messages of a job's log from a sequence on; none means its end.
	Read func(ctx context.Context, id job.ID, from uint64) ([]streams.LogPage, error)
}

// Handle returns the end of a job's log.
func (r *Reader) Handle(ctx context.Context, q *api.LogRequest) (*api.LogReply, error) {
	if q.ID == "" {
		return nil, &job.InvalidError{Reason: `name the job: {"id": "<uuid, queue:uuid or key>"}`}
	}
	if q.Lines < 0 || q.Lines > maxLogLines {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("lines is %d; must be 1 to %d", q.Lines, maxLogLines)}
	}
	id, err := r.FindJob(ctx, q.ID, q.Queue)
	_, uncertain := errors.AsType[*job.UnavailableError](err)
	unknown := (uncertain || errors.Is(err, job.ErrJobNotFound)) && id != job.ID{} // its log may still exist
	if err != nil && !unknown {
		return nil, err
	}
	reply, readErr := r.tail(ctx, id, q.Lines)
	if readErr != nil {
		return nil, readErr
	}
	if unknown && len(reply.Lines) == 0 {
		return nil, err
	}
	return reply, nil
}

// tail reads a job's log from its beginning and returns the last lines.
func (r *Reader) tail(ctx context.Context, id job.ID, limit int) (*api.LogReply, error) {
	limit = cmp.Or(limit, maxLogLines)
	reply := &api.LogReply{ID: id, Lines: []json.RawMessage{}, Next: 1}
	size := 0
	for {
		pages, err := r.Read(ctx, id, reply.Next)
		if err != nil {
			return nil, &job.UnavailableError{Reason: "the job's log cannot be read now: " + err.Error(), RetryAfter: 500 * time.Millisecond}
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
