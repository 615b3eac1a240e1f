package overhop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/usercode"
)

// Progress reports how far the job has come: percent, 0 to 100, and data, which
// must be acceptable to [Marshal] and at most 4 KiB, or nil. The yard keeps the
// last report only. ctx must be the handler's context.
//
// Progress returns an error if data cannot be sent, or a [*StopError] if the
// job's lease is lost. A report that is lost with the connection is not an
// error.
func (q *Quest) Progress(ctx context.Context, percent int, data any) error {
	value, err := Marshal(data)
	if err != nil {
		return fmt.Errorf("progress data: %w", err)
	}
	return q.send(ctx, TProgress, func(c *Client) Fields {
		p := Fields{"percent": min(max(percent, 0), 100)}
		c.setUserValue(p, "data", value)
		return p
	})
}

// maxLogLine is the number of bytes of a line that are sent. A node keeps 2048 characters.
const maxLogLine = 8 << 10

// Log adds lines to the job's log. ctx must be the handler's context. Log
// returns the same errors as [Quest.Progress].
func (q *Quest) Log(ctx context.Context, lines ...string) error { return q.LogAt(ctx, "", lines...) }

// LogAt is like [Quest.Log] for lines of a level, such as "warn"; "" means none.
func (q *Quest) LogAt(ctx context.Context, level string, lines ...string) error {
	entries := make([]any, len(lines))
	now := time.Now().UTC().Format(time.RFC3339Nano)
	for i, line := range lines {
		entry := Fields{"at": now, "msg": usercode.Cut(line, maxLogLine)}
		setUnlessZero(entry, "level", strings.ToValidUTF8(level, "\uFFFD"))
		entries[i] = entry
	}
	return q.send(ctx, TLog, func(*Client) Fields { return Fields{"lines": entries} })
}

// send sends a message about the job whose handler has the context ctx, and
// waits for the answer. The message is not repeated if the connection is lost.
// If the answer means that the lease is lost, send stops the handler and
// returns a [*StopError].
func (q *Quest) send(ctx context.Context, t int64, fields func(*Client) Fields) error {
	job, ok := ctx.Value(activeJobKey{}).(*activeJob)
	if !ok {
		return errors.New("the context is not that of a Worker's handler")
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	job.worker.mu.Lock()
	conn := job.worker.conn
	job.worker.mu.Unlock()
	if conn == nil {
		return nil
	}
	payload := fields(conn.client)
	payload["jid"], payload["tok"] = job.quest.JID, job.quest.Token[:]
	_, err := conn.client.Call(ctx, t, payload.Raw())
	switch code := ErrorCode(err); {
	case endsLease(code):
		job.worker.loseLease(job, code)
		return &StopError{StopLeaseLost}
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, ErrClosed) || code == CodeUnavailable:
		return nil
	}
	return err
}
