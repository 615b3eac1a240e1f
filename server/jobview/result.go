package jobview

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// resultRef is where a job's result is.
type resultRef struct {
	number uint64             // of the result; 0: there is none
	seq    uint64             // of its message; 0: unknown
	item   *ledger.ResultItem // the result itself while it is not published; else nil
	age    time.Duration      // for which the job's queue shows results; 0: as long as they are stored
}

// locate sets what the ledger knows about a result of a queue's job.
func (r *resultRef) locate(l *ledger.Ledger, queue string) {
	if r.number > 0 {
		r.item, r.seq = l.FindResult(r.number)
		q, _ := l.Queue(queue)
		r.age = q.Config.Retention.Age(job.KeptResults)
	}
}

// addResult adds the job's result, of at most limit bytes, or why it is gone. After its
// result TTL, or the results.age of its queue, the result is only hidden: a message of the stream holds the results of many
// jobs and stays until the stream expires it.
func (v *Viewer) addResult(ctx context.Context, view *job.View, ref resultRef, limit int64) error {
	blob, err := v.findResult(ctx, view, ref)
	if err != nil || blob == nil {
		return err
	}
	if blob.Size > limit {
		// Reading the beginning finds out whether the result was evicted.
		_, err := v.Reader.LoadBlobRange(ctx, streams.ResultBlobs, *blob, 0, 1)
		return v.blobError(view, err)
	}
	data, err := v.Reader.LoadBlob(ctx, streams.ResultBlobs, *blob)
	view.Result.Data = data
	return v.blobError(view, err)
}

// blobError returns the error for a result whose blob could not be read because of err,
// which may be nil. It is no error if the blob was evicted.
func (v *Viewer) blobError(view *job.View, err error) error {
	if errors.Is(err, streams.ErrNotStored) {
		view.ResultGone = job.ResultEvicted
		return nil
	}
	if err != nil {
		return ReadError("result", view.ID, err)
	}
	return nil
}

// findResult adds the job's result, or why it is gone. It returns the blob that contains
// the result, or nil if the view has all of it; the view's Result then has its encoding.
func (v *Viewer) findResult(ctx context.Context, view *job.View, ref resultRef) (*job.Blob, error) {
	if ref.number == 0 {
		return nil, nil
	}
	expired := func(lifetime time.Duration) bool {
		return lifetime > 0 && !time.Now().Before(view.Ended.Add(lifetime))
	}
	if expired(view.ResultTTL) || expired(ref.age) {
		view.ResultGone = job.ResultExpired
		return nil, nil
	}
	var line outbox.ResultLine
	if item := ref.item; item != nil {
		view.Result, line.Blob, line.Dropped = item.Value, item.Blob, item.Dropped
	} else {
		found, err := v.readResultLine(ctx, ref)
		if errors.Is(err, streams.ErrNotStored) {
			view.ResultGone = job.ResultEvicted
			return nil, nil
		}
		if err != nil {
			return nil, ReadError("result", view.ID, err)
		}
		line = found
		view.Result = line.Value()
	}
	if line.Dropped != nil {
		view.ResultGone, view.ResultReason = job.ResultDropped, line.Dropped.Reason
		view.Result = job.Value{}
	}
	return line.Blob, nil
}

// readResultLine finds a result in the stream of results. After a failover the ledger may
// only know an earlier message, or none: then the stream is searched. The error is
// [streams.ErrNotStored] if the result has expired.
func (v *Viewer) readResultLine(ctx context.Context, ref resultRef) (line outbox.ResultLine, err error) {
	var b streams.Batch
	if ref.seq > 0 {
		b, err = v.Reader.ReadBatch(ctx, subjects.StreamResults, ref.seq)
	}
	if err == nil && (ref.number < b.First || ref.number > b.Last()) {
		b, err = v.Reader.FindBatch(ctx, subjects.StreamResults, ref.number)
	}
	if err != nil {
		return line, err
	}
	for text := range bytes.Lines(b.Body) {
		if json.Unmarshal(text, &line) == nil && line.Number == ref.number {
			return line, nil
		}
		line = outbox.ResultLine{}
	}
	return line, streams.ErrNotStored
}
