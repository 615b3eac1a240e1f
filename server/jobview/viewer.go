// Package jobview reads jobs: what the ledger has of them, with their bodies and results.
package jobview

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
)

// Viewer reads jobs. All exported fields but Index are required.
type Viewer struct {
	Ledger      Ledger
	Index       Index // nil: jobs that the ledger has forgotten are not found
	Waiters     *ledgerwait.Waiters
	Reader      Reader
	Lanes       func() int                                                  // returns the number of lanes
	Record      func(context.Context, job.Position, job.ID) ([]byte, error) // reads the record of a job at a position; it contains the body or refers to it
	ReadBarrier func(context.Context) error                                 // waits until the local ledger is current
	AddProgress func(context.Context, *job.View)                            // adds what the worker last reported

	mu        crash.Mutex
	windows   map[string]Content // params in blobs that were read before, by the blobs' names
	largeBody sync.Mutex
}

// Ledger is the local ledger.
type Ledger interface {
	View(func(*ledger.Ledger))
	Copy() *ledger.Ledger
}

// Reader reads what the ledger does not have, as [streams.Reader].
type Reader interface {
	LastSeq(ctx context.Context, lane uint8) (uint64, error)
	LoadRecordBody(ctx context.Context, record []byte) ([]byte, error)
	LoadBlob(ctx context.Context, store streams.BlobStore, blob job.Blob) ([]byte, error)
	LoadBlobRange(ctx context.Context, store streams.BlobStore, blob job.Blob, offset, size int64) ([]byte, error)
	ReadBatch(ctx context.Context, stream string, seq uint64) (streams.Batch, error)
	FindBatch(ctx context.Context, stream string, number uint64) (streams.Batch, error)
	NumberedDeadLetter(ctx context.Context, number uint64) (streams.Batch, error)
	AttemptError(ctx context.Context, id job.ID, n uint32) (*job.AttemptError, error)
	AttemptErrors(ctx context.Context, id job.ID, limit, maxBytes int) (errs []job.AttemptError, more bool, err error)
}

// Summary returns a job without its body and its result.
func (v *Viewer) Summary(ctx context.Context, id job.ID) (job.View, error) {
	view, _, err := v.ledgerView(ctx, id)
	return view, err
}

// ledgerView returns a job from the ledger, or from the index if the ledger has forgotten it, and where its
// result is. A job that the caller may not read is not found.
func (v *Viewer) ledgerView(ctx context.Context, id job.ID) (job.View, resultRef, error) {
	view, ref, err := v.anyView(ctx, id)
	if err == nil && !cluster.MayUse(ctx, view.Queue) {
		view, ref, err = job.View{}, resultRef{}, job.ErrJobNotFound
	}
	return view, ref, v.conceal(ctx, err, id, "")
}

// anyView is ledgerView for a job that the ledger has, whether or not the caller may read it.
func (v *Viewer) anyView(ctx context.Context, id job.ID) (view job.View, ref resultRef, err error) {
	ok := false
	v.Ledger.View(func(l *ledger.Ledger) {
		if view, ref.number, ok = l.Find(id); ok {
			ref.locate(l, view.Queue)
		}
	})
	if ok {
		return view, ref, nil
	}
	d, err := v.forgotten(ctx, id)
	if d == nil {
		return view, ref, cmp.Or(err, v.notFoundError(id))
	}
	ref.number = d.Result
	v.Ledger.View(func(l *ledger.Ledger) { ref.locate(l, d.Queue) })
	view = d.View()
	view.Forgotten = true
	return view, ref, nil
}

// Explain returns err or, if it is [job.ErrJobNotFound], an error that says why there is no such
// job. If the ledger has forgotten the job, it is [job.ErrJobForgotten]; if that is not known, an
// [*IncompleteError].
func (v *Viewer) Explain(ctx context.Context, err error, id job.ID) error {
	if !errors.Is(err, job.ErrJobNotFound) {
		return err
	}
	d, uncertain := v.forgotten(ctx, id)
	if d != nil {
		return fmt.Errorf("job %s is %s, and %w", id, d.State, job.ErrJobForgotten)
	}
	return cmp.Or(uncertain, v.notFoundError(id))
}

// Full returns a job with its body, progress and result. A result of more than limit
// bytes is left out. With an error, the view has what was read before.
func (v *Viewer) Full(ctx context.Context, id job.ID, limit int64) (job.View, error) {
	view, ref, err := v.ledgerView(ctx, id)
	if err != nil {
		return view, err
	}
	if err := v.addBody(ctx, &view); err != nil {
		return view, err
	}
	v.AddProgress(ctx, &view)
	view.LetterGone = v.LetterGone(ctx, &view)
	v.addError(ctx, &view)
	err = v.addResult(ctx, &view, ref, limit)
	return view, err
}

// Finished returns how a job has ended, without its body. A result of more than limit
// bytes is left out.
func (v *Viewer) Finished(ctx context.Context, id job.ID, limit int64) (job.View, error) {
	view, ref, err := v.ledgerView(ctx, id)
	if err != nil {
		return view, err
	}
	v.addError(ctx, &view)
	err = v.addResult(ctx, &view, ref, limit)
	return view, err
}

// LetterGone reports whether the dead letter of a failed job no longer exists. If that cannot be
// determined, it returns false.
func (v *Viewer) LetterGone(ctx context.Context, view *job.View) bool {
	if view.DeadLetter == 0 || v.isUnpublished(view.DeadLetter) {
		return false
	}
	_, err := v.Reader.NumberedDeadLetter(ctx, view.DeadLetter)
	return errors.Is(err, streams.ErrNotStored)
}

// isUnpublished reports whether a dead letter is not stored yet.
func (v *Viewer) isUnpublished(number uint64) (unpublished bool) {
	v.Ledger.View(func(l *ledger.Ledger) {
		letters := l.DeadLettersAfter(number - 1)
		unpublished = len(letters) > 0 && letters[0].Number == number
	})
	return unpublished
}

// addBody adds the job's body and key. It is no error if the body has been deleted or its lane no
// longer exists, which readiness reports. The body of a rejected record, which is not a
// job, is left out.
func (v *Viewer) addBody(ctx context.Context, view *job.View) error {
	var body []byte
	recordCtx, cancel := context.WithTimeout(ctx, recordsTimeout)
	defer cancel()
	record, err := v.LoadRecord(recordCtx, view.Position, view.ID)
	if err == nil {
		view.Key = job.KeyOf(record, view.Queue, view.ID)
		body, err = v.Reader.LoadRecordBody(ctx, record)
	}
	switch {
	case isGone(err):
		view.PayloadGone = true
		return nil
	case err != nil:
		return ReadError("body", view.ID, err)
	}
	if spec, err := job.ParseSpec(body); err == nil {
		view.Spec = &spec
	}
	return nil
}

// LoadBody returns the body of a job whose record is, or was, at a position. The error is
// [streams.ErrNotStored] if the body is stored nowhere.
func (v *Viewer) LoadBody(ctx context.Context, at job.Position, id job.ID) ([]byte, error) {
	record, err := v.LoadRecord(ctx, at, id)
	if err != nil {
		return nil, err
	}
	return v.Reader.LoadRecordBody(ctx, record)
}

// LoadRecord returns the record of a job, which contains its body or refers to it. If the
// record is gone from its position, LoadRecord looks where the ledger now has it, and in
// the job's dead letter. The error is [streams.ErrNotStored] if it is stored nowhere.
func (v *Viewer) LoadRecord(ctx context.Context, at job.Position, id job.ID) ([]byte, error) {
	record, err := v.Record(ctx, at, id)
	if !errors.Is(err, streams.ErrNotStored) {
		return record, err
	}
	view, _, findErr := v.ledgerView(ctx, id)
	if findErr == nil && !view.State.Ended() && view.Position == at { // the local ledger may lag
		if err := v.ReadBarrier(ctx); err != nil {
			return nil, err
		}
		view, _, findErr = v.ledgerView(ctx, id)
	}
	switch {
	case findErr != nil:
		return nil, err
	case view.Position != at:
		return v.Record(ctx, view.Position, id)
	case view.DeadLetter > 0:
		_, record, err := v.DeadLetter(ctx, &view)
		return record, err
	}
	return nil, err
}

// DeadLetter returns the dead letter of a failed job, and its record as it was accepted.
// The error is [streams.ErrNotStored] if the dead letter was removed.
func (v *Viewer) DeadLetter(ctx context.Context, view *job.View) (letter api.DeadLetterMessage, record []byte, err error) {
	b, err := v.Reader.NumberedDeadLetter(ctx, view.DeadLetter)
	if err != nil {
		return letter, nil, err
	}
	if err := json.Unmarshal(b.Body, &letter); err != nil {
		return letter, nil, fmt.Errorf("dead letter %d of job %s: %w", view.DeadLetter, view.ID, err)
	}
	if record = letter.RecordBody(); record == nil || letter.ID != view.ID.String() {
		return letter, nil, fmt.Errorf("dead letter %d has no record of job %s: %w", view.DeadLetter, view.ID, streams.ErrNotStored)
	}
	return letter, record, nil
}

// ReadError returns the error for a part of a job that cannot be read. It is a
// [*job.UnavailableError] if a retry may succeed: after a new election or a slow read.
func ReadError(part string, id job.ID, err error) error {
	err = fmt.Errorf("%s of job %s: %w", part, id, err)
	if errors.Is(err, streams.ErrNoLeader) || errors.Is(err, context.DeadlineExceeded) {
		return &job.UnavailableError{Reason: err.Error(), RetryAfter: time.Second}
	}
	return err
}

// Page returns a page, from 1, of a queue's jobs in a state, oldest first and without
// bodies. Of ended jobs there may be several states. It reads from a copy of the ledger, so that it does not block the applying of
// entries.
func (v *Viewer) Page(ctx context.Context, queue string, page, size int, states ...job.State) ([]job.View, error) {
	c := v.Ledger.Copy()
	if _, ok := c.Queue(queue); !ok {
		if err := v.ReadBarrier(ctx); err != nil {
			return nil, err
		}
		c = v.Ledger.Copy()
	}
	if _, ok := c.Queue(queue); !ok {
		return nil, fmt.Errorf("queue %q: %w", queue, job.ErrQueueNotFound)
	}
	if len(states) > 1 {
		return c.ListEnded(queue, states, (page-1)*size, size), nil
	}
	return c.List(queue, states[0], (page-1)*size, size), nil
}

// List is Page with bodies.
func (v *Viewer) List(ctx context.Context, queue string, page, size int, states ...job.State) ([]job.View, error) {
	views, err := v.Page(ctx, queue, page, size, states...)
	if err != nil {
		return nil, err
	}
	bytes := 0
	for i := range views {
		if err := v.addBody(ctx, &views[i]); err != nil {
			return nil, err
		}
		if spec := views[i].Spec; spec != nil {
			bytes += len(spec.Params) + len(spec.Payload)
		}
		if bytes > maxPageBytes {
			return nil, fmt.Errorf("page of jobs with bodies of more than %d bytes; ask for fewer jobs a page: %w", maxPageBytes, job.ErrTooLarge)
		}
	}
	return views, nil
}

// maxPageBytes bounds the bodies of one page, which are all in memory at once. It is the
// size of an Overhop frame.
const maxPageBytes = 8 << 20
