package jobview

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
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
	r.Viewer.Ledger.View(func(l *ledger.Ledger) { index = l.Index() })
	view, err := r.Viewer.Summary(ctx, id)
	if err != nil {
		return 0, 0, err
	}
	copies, gone, err := r.RestoreRecords(ctx, []job.View{view})
	return copies[id], index, errors.Join(gone[id], err)
}

// maxParallelLetters is how many dead letters are read at the same time.
const maxParallelLetters = 16

// RestoreRecords stores copies of the records in the dead letters of jobs, and returns the
// sequences of the copies by the jobs' ids, and the errors of jobs whose record is gone: they
// wrap [job.ErrRecordReclaimed]. Another error passes.
func (r *Retrier) RestoreRecords(ctx context.Context, views []job.View) (copies map[job.ID]uint64, gone map[job.ID]error, err error) {
	var floor uint64
	r.Viewer.Ledger.View(func(l *ledger.Ledger) { floor = l.RelocatedFloor() })
	found, missing := make([]job.Record, len(views)), make([]error, len(views))
	group, groupCtx := crash.WithContext(ctx)
	group.SetLimit(maxParallelLetters)
	for i := range views {
		group.Go(func() (err error) {
			found[i], missing[i], err = r.findRecord(groupCtx, &views[i])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, nil, err
	}
	gone, records := make(map[job.ID]error), found[:0]
	for i := range views {
		if missing[i] != nil {
			gone[views[i].ID] = missing[i]
			continue
		}
		records = append(records, found[i])
	}
	if len(records) == 0 {
		return nil, gone, nil
	}
	seqs, err := r.StoreRelocated(ctx, floor, records)
	copies = make(map[job.ID]uint64, len(seqs))
	for i, seq := range seqs {
		copies[records[i].Owner] = seq
	}
	return copies, gone, err
}

// findRecord returns the record in the dead letter of a job, or why there is none.
func (r *Retrier) findRecord(ctx context.Context, view *job.View) (record job.Record, gone, err error) {
	if view.DeadLetter == 0 { // it was cancelled, or has expired
		return record, fmt.Errorf("job %s: %w", view.ID, job.ErrRecordReclaimed), nil
	}
	letter, body, err := r.Viewer.DeadLetter(ctx, view)
	switch {
	case errors.Is(err, streams.ErrNotStored) && r.Viewer.isUnpublished(view.DeadLetter):
		return record, nil, &job.UnavailableError{Reason: fmt.Sprintf("the dead letter of job %s is being stored", view.ID), RetryAfter: time.Second}
	case errors.Is(err, streams.ErrNotStored):
		return record, fmt.Errorf("job %s: %w", view.ID, job.ErrRecordReclaimed), nil
	case err != nil:
		return record, nil, ReadError("record", view.ID, err)
	}
	return job.Record{Position: view.Position, Queue: view.Queue, Stored: letter.Accepted, Body: body, Owner: view.ID}, nil, nil
}
