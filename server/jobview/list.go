package jobview

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Limits of reading the records of a list.
const (
	maxParallelRecords = 16
	recordsTimeout     = 3 * time.Second // for the records of a list, or a single one
)

// JobList returns a page of jobs, without bodies and results, also of those that the ledger has forgotten. If the query names a queue
// that certainly does not exist, the error wraps [job.ErrQueueNotFound]. It reads the
// ledger in short steps, so that it does not block the applying of entries.
func (v *Viewer) JobList(ctx context.Context, query *ledger.JobQuery) (*ledger.JobPage, error) {
	page, err := v.readList(ctx, query)
	if err != nil {
		return nil, err
	}
	if page.Missing != "" {
		if err := v.ReadBarrier(ctx); err != nil {
			return nil, err
		}
		if page, err = v.readList(ctx, query); err != nil {
			return nil, err
		}
	}
	if page.Missing != "" {
		return nil, fmt.Errorf("queue %q: %w", page.Missing, job.ErrQueueNotFound)
	}
	return page, v.addForgotten(ctx, query, page)
}

// readList returns a page of jobs of the local ledger.
func (v *Viewer) readList(ctx context.Context, query *ledger.JobQuery) (*ledger.JobPage, error) {
	list := ledger.NewJobList(query)
	for done := false; !done; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		v.Ledger.View(func(l *ledger.Ledger) { done = list.Step(l) })
	}
	return list.Page(), nil
}

// AddRecords adds keys and params to listed jobs, from their records, of which it reads
// several at the same time. Params in blobs are not read. A job whose record cannot be read
// in time is marked as unread.
func (v *Viewer) AddRecords(ctx context.Context, jobs []ledger.ListedJob) {
	ctx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	var group crash.Group
	group.SetLimit(maxParallelRecords)
	for i := range jobs {
		group.Go(func() error {
			v.addRecord(ctx, &jobs[i])
			return nil
		})
	}
	_ = group.Wait() // it returns no error
}

// addRecord adds the key and the params of one job.
func (v *Viewer) addRecord(ctx context.Context, listed *ledger.ListedJob) {
	view := &listed.View
	if listed.Purged && view.State.Ended() && view.DeadLetter == 0 {
		view.PayloadGone = true
		return
	}
	var record []byte
	var err error
	if listed.Purged && view.DeadLetter > 0 {
		_, record, err = v.DeadLetter(ctx, view)
	} else {
		record, err = v.LoadRecord(ctx, view.Position, view.ID)
	}
	switch {
	case isGone(err):
		view.PayloadGone = true
		return
	case errors.Is(err, context.DeadlineExceeded):
		view.Unread = fmt.Sprintf("no answer within %s", duration.Format(recordsTimeout))
		return
	case err != nil:
		view.Unread = cluster.ErrorText(err)
		return
	}
	view.Key = job.KeyOf(record, view.Queue, view.ID)
	if spec, err := job.ParseSpec(record); err == nil {
		view.Spec = &spec
	}
}
