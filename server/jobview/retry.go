package jobview

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/authority"
)

// Retrier lets failed, cancelled and expired jobs wait again. All fields are required.
type Retrier struct {
	Viewer         *Viewer
	Propose        func(context.Context, ledger.Command) (authority.Result, error)
	StoreRelocated func(ctx context.Context, floor uint64, records []job.Record) (seqs []uint64, err error)
}

// retryAttempts is how often a record is restored: its copy may be reclaimed again
// before the job refers to it.
const retryAttempts = 3

// Retry commits c. A job that has ended keeps no record in its lane: if the record is gone,
// Retry first stores a copy of the one in the job's dead letter. The error is
// [job.ErrRecordReclaimed] if the dead letter is gone, too, or if there is none because
// the job was cancelled.
func (r *Retrier) Retry(ctx context.Context, c *ledger.RetryJob) (result authority.Result, err error) {
	for range retryAttempts {
		result, err = r.Propose(ctx, c)
		if !errors.Is(err, job.ErrRecordReclaimed) {
			return result, err
		}
		if c.Relocated, c.AsOf, err = r.restoreRecord(ctx, c.Job); err != nil {
			return result, err
		}
	}
	return result, &job.UnavailableError{Reason: fmt.Sprintf("the record of job %s is reclaimed as fast as it is restored", c.Job)}
}

// restoreRecord stores a copy of the record in a job's dead letter, and returns the
// copy's sequence, and the index of the ledger before it looked for the letter.
func (r *Retrier) restoreRecord(ctx context.Context, id job.ID) (seq, index uint64, err error) {
	if err := r.Viewer.ReadBarrier(ctx); err != nil {
		return 0, 0, err
	}
	var floor uint64
	r.Viewer.Ledger.View(func(l *ledger.Ledger) { index, floor = l.Index(), l.RelocatedFloor() })
	view, err := r.Viewer.Summary(ctx, id)
	if err != nil {
		return 0, 0, err
	}
	letter, record, err := r.Viewer.DeadLetter(ctx, &view)
	if errors.Is(err, streams.ErrNotStored) && view.DeadLetter != 0 && r.Viewer.isUnpublished(view.DeadLetter) {
		return 0, 0, &job.UnavailableError{Reason: fmt.Sprintf("the dead letter of job %s is being stored", id), RetryAfter: time.Second}
	}
	if view.DeadLetter == 0 || errors.Is(err, streams.ErrNotStored) { // 0: it was cancelled
		return 0, 0, fmt.Errorf("job %s: %w", id, job.ErrRecordReclaimed)
	}
	if err != nil {
		return 0, 0, ReadError("record", id, err)
	}
	seqs, err := r.StoreRelocated(ctx, floor, []job.Record{{
		Position: view.Position, Queue: view.Queue, Stored: letter.Accepted, Body: record, Owner: id,
	}})
	if err != nil {
		return 0, 0, err
	}
	return seqs[0], index, nil
}
