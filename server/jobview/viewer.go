// Package jobview reads jobs: what the ledger has of them, with their bodies and results.
package jobview

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/ledgerwait"
)

// Viewer reads jobs. All exported fields are required.
type Viewer struct {
	Ledger      Ledger
	Waiters     *ledgerwait.Waiters
	Reader      *streams.Reader
	Lanes       func() int                                                  // returns the number of lanes
	LoadBody    func(context.Context, job.Position, job.ID) ([]byte, error) // reads a job's body
	LoadRecord  func(context.Context, job.Position, job.ID) ([]byte, error) // reads a job's record, which contains its body or refers to it
	ReadBarrier func(context.Context) error                                 // waits until the local ledger is current
	AddProgress func(context.Context, *job.View)                            // adds what the worker last reported

	mu        sync.Mutex
	windows   map[string]Content // params in blobs that were read before, by the blobs' names
	largeBody sync.Mutex
}

// Ledger is the local ledger.
type Ledger interface {
	View(func(*ledger.Ledger))
	Copy() *ledger.Ledger
}

// Locate returns the id of the job that a text names, see find. Before it returns that
// there is no such job, with an error that wraps [job.ErrJobNotFound], it waits until the
// local ledger has all jobs that were accepted.
func (v *Viewer) Locate(ctx context.Context, text, queue string) (job.ID, error) {
	id, err := v.find(text, queue)
	if err == nil && v.isKnown(id) {
		return id, nil
	}
	if err != nil && !errors.Is(err, job.ErrJobNotFound) {
		return id, err
	}
	if err := v.CatchUp(ctx); err != nil {
		return id, err
	}
	id, err = v.find(text, queue)
	if err == nil && !v.isKnown(id) {
		err = fmt.Errorf("%s: %w", id, job.ErrJobNotFound)
	}
	return id, err
}

// isKnown reports whether the local ledger has, or had, a job with this id.
func (v *Viewer) isKnown(id job.ID) (known bool) {
	v.Ledger.View(func(l *ledger.Ledger) { _, known = l.Known(id) })
	return known
}

// CatchUp waits until the local ledger has every job that had been accepted when it was
// called. Call it before answering that a job does not exist. A [*job.UnavailableError]
// means that this is not certain: a lane whose leader does not answer may hold records
// that are not ingested.
func (v *Viewer) CatchUp(ctx context.Context) error {
	if err := v.ReadBarrier(ctx); err != nil {
		return err
	}
	lanes := v.Lanes()
	errs := make([]error, lanes)
	var queries sync.WaitGroup
	for lane := range lanes {
		queries.Go(func() { errs[lane] = v.catchUpWith(ctx, uint8(lane)) })
	}
	queries.Wait()
	for lane, err := range errs {
		if err != nil {
			return &job.UnavailableError{
				Reason: fmt.Sprintf("lane %d may hold jobs that are not ingested yet: %s", lane, cluster.ErrorText(err)), RetryAfter: time.Second,
			}
		}
	}
	return nil
}

// catchUpWith is CatchUp for one lane.
func (v *Viewer) catchUpWith(ctx context.Context, lane uint8) error {
	reqCtx, cancel := context.WithTimeout(ctx, ledgerwait.ReadTimeout)
	defer cancel()
	last, err := v.Reader.LastSeq(reqCtx, lane)
	if err != nil {
		return err
	}
	return v.Waiters.WaitRead(ctx, func(l *ledger.Ledger) bool { return l.Ingested(job.Position{Lane: lane, Seq: last}) })
}

// find returns the id that a text names: a UUID, "<queue>:<UUID>", "<queue>:<key>", or a
// key, of the given queue or else of the only queue with such a job.
func (v *Viewer) find(text, queue string) (job.ID, error) {
	if id, err := job.ParseID(text); err == nil {
		return id, nil
	}
	if prefix, name, found := strings.Cut(text, ":"); found && queue == "" && job.ValidQueue(prefix) == nil {
		if id, err := v.find(name, prefix); err == nil {
			return id, nil
		}
	}
	var found job.ID
	err := fmt.Errorf("%q: %w", text, job.ErrJobNotFound)
	v.Ledger.View(func(l *ledger.Ledger) {
		for _, q := range l.Queues() {
			if queue != "" && q.Name != queue {
				continue
			}
			id, badKey := job.KeyID(q.Name, text)
			if badKey != nil {
				err = badKey
				return
			}
			if owner, _ := l.Known(id); owner != q.Name {
				continue
			}
			if other, _ := l.Known(found); other != "" {
				err = &job.InvalidError{Reason: fmt.Sprintf("queues %s and %s have a job with the key %q; name the queue", other, q.Name, text)}
				return
			}
			found, err = id, nil
		}
	})
	return found, err
}

// Summary returns a job from the ledger, without its body and its result.
func (v *Viewer) Summary(_ context.Context, id job.ID) (job.View, error) {
	view, _, err := v.ledgerView(id)
	return view, err
}

// ledgerView returns a job from the ledger, and where its result is.
func (v *Viewer) ledgerView(id job.ID) (view job.View, ref resultRef, err error) {
	ok := false
	v.Ledger.View(func(l *ledger.Ledger) {
		view, ref.number, ok = l.Find(id)
		if ok && ref.number > 0 {
			ref.item, ref.seq = l.FindResult(ref.number)
		}
	})
	if !ok {
		return view, ref, fmt.Errorf("%s: %w", id, job.ErrJobNotFound)
	}
	return view, ref, nil
}

// Full returns a job with its body, progress and result. A result of more than limit
// bytes is left out. With an error, the view has what was read before.
func (v *Viewer) Full(ctx context.Context, id job.ID, limit int64) (job.View, error) {
	view, ref, err := v.ledgerView(id)
	if err != nil {
		return view, err
	}
	if err := v.addBody(ctx, &view); err != nil {
		return view, err
	}
	v.AddProgress(ctx, &view)
	err = v.addResult(ctx, &view, ref, limit)
	return view, err
}

// Finished returns how a job has ended, without its body. A result of more than limit
// bytes is left out.
func (v *Viewer) Finished(ctx context.Context, id job.ID, limit int64) (job.View, error) {
	view, ref, err := v.ledgerView(id)
	if err != nil {
		return view, err
	}
	err = v.addResult(ctx, &view, ref, limit)
	return view, err
}

// addBody adds the job's body. It is no error if the body has been deleted or its lane no
// longer exists, which readiness reports. The body of a rejected record, which is not a
// job, is left out.
func (v *Viewer) addBody(ctx context.Context, view *job.View) error {
	body, err := v.LoadBody(ctx, view.Position, view.ID)
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
// bodies. It reads from a copy of the ledger, so that it does not block the applying of
// entries.
func (v *Viewer) Page(ctx context.Context, queue string, state job.State, page, size int) ([]job.View, error) {
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
	return c.List(queue, state, (page-1)*size, size), nil
}

// List is Page with bodies.
func (v *Viewer) List(ctx context.Context, queue string, state job.State, page, size int) ([]job.View, error) {
	views, err := v.Page(ctx, queue, state, page, size)
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
