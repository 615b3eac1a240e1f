package deadletters

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/internal/mergepatch"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// NewJob asks for a new job that is created from the dead letter of a failed one.
type NewJob struct {
	Job          job.ID
	DeadLetter   uint64 // number of the letter
	To           string // queue; "": that of the failed job
	KeepAttempts bool   // the attempts so far count
	Params       []byte // JSON merge patch for the params; nil: they stay as they are
}

// Created is a job that was created from a dead letter.
type Created struct {
	ID     job.ID
	Letter uint64 // sequence of the letter in its stream
	Before bool   // the job had been created before
}

// ErrLetterGone is returned if a job has no dead letter any more.
var ErrLetterGone = errors.New("its dead letter was removed or evicted")

// Create creates the new job, unless that was done before: its id is derived from the letter.
// The letter stays in the stream, see [Server.RemoveLetter]. A [*job.UnavailableError] passes.
func (s *Server) Create(ctx context.Context, q *NewJob) (created Created, err error) {
	r, l, err := s.requeuerOf(ctx, q)
	if err != nil {
		return Created{}, err
	}
	created = Created{ID: l.requeueID(), Letter: l.number}
	if _, known := r.knownQueue(created.ID); known {
		created.Before = true
		return created, nil
	}
	item, err := r.enqueue(ctx, l, created.ID, cmp.Or(q.To, l.Queue))
	created.Before = item.Result == api.ResultStale
	if err == nil && !created.Before {
		s.cfg.Authority.RecordAct(ctx, &ledger.RecordAct{Action: "dlq.requeue", Job: l.job, Queue: l.Queue, Target: item.Job})
	}
	return created, err
}

// Preview returns the params that the new job would have, and an error if it would be refused.
func (s *Server) Preview(ctx context.Context, q *NewJob) (params json.RawMessage, err error) {
	r, l, err := s.requeuerOf(ctx, q)
	if err != nil {
		return nil, err
	}
	r.req.DryRun = true
	spec, release, err := r.spec(ctx, l)
	if err != nil {
		return nil, err
	}
	params = spec.Params
	release() // a large body is read again
	_, err = r.enqueue(ctx, l, l.requeueID(), cmp.Or(q.To, l.Queue))
	return params, err
}

// RemoveLetter removes a dead letter from its stream.
func (s *Server) RemoveLetter(ctx context.Context, seq uint64) error { return s.cfg.Remove(ctx, seq) }

// Bounds of RemoveNumbered.
const (
	maxParallelRemovals = 256
	maxReadPerLetter    = 4 // letters that are read in one go for each that is to be removed
)

// RemoveNumbered removes the dead letters with these numbers. Those that are gone are no error. If
// the numbers are close to each other, it reads the letters in between in one go to find the
// sequences, which are the numbers unless the stream was restored.
func (s *Server) RemoveNumbered(ctx context.Context, numbers []uint64) error {
	if len(numbers) == 0 {
		return nil
	}
	left := make(map[uint64]bool, len(numbers))
	for _, number := range numbers {
		left[number] = true
	}
	group, groupCtx := crash.WithContext(ctx)
	group.SetLimit(maxParallelRemovals)
	if first, last := slices.Min(numbers), slices.Max(numbers); last-first < maxReadPerLetter*uint64(len(numbers)) {
		err := s.cfg.Reader.DeadLetters(ctx, "", first, last, func(b streams.Batch) bool {
			if left[b.First] {
				delete(left, b.First)
				group.Go(func() error { return s.cfg.Remove(groupCtx, b.Seq) })
			}
			return true
		})
		if err != nil {
			return errors.Join(err, group.Wait())
		}
	}
	for number := range left {
		group.Go(func() error { return s.removeNumbered(groupCtx, number) })
	}
	return group.Wait()
}

func (s *Server) removeNumbered(ctx context.Context, number uint64) error {
	message, err := s.cfg.Reader.NumberedDeadLetter(ctx, number)
	switch {
	case errors.Is(err, streams.ErrNotStored):
		return nil
	case err != nil:
		return err
	}
	return s.cfg.Remove(ctx, message.Seq)
}

// HasLetter reports whether the dead letter of a job with this number is still there.
func (s *Server) HasLetter(ctx context.Context, id job.ID, number uint64) (bool, error) {
	_, _, err := s.requeuerOf(ctx, &NewJob{Job: id, DeadLetter: number})
	if errors.Is(err, ErrLetterGone) {
		return false, nil
	}
	return err == nil, err
}

// requeuerOf returns what creates a job, and the dead letter.
func (s *Server) requeuerOf(ctx context.Context, q *NewJob) (*requeuer, *letter, error) {
	message, err := s.cfg.Reader.NumberedDeadLetter(ctx, q.DeadLetter)
	switch {
	case errors.Is(err, streams.ErrNotStored):
		return nil, nil, ErrLetterGone
	case err != nil:
		return nil, nil, deadLetterReadError(err)
	}
	l := parse(&message)
	switch {
	case l.unreadable:
		return nil, nil, errors.New(l.Reason)
	case l.job != q.Job:
		return nil, nil, ErrLetterGone
	}
	req := &request{DeadLetterRequest: api.DeadLetterRequest{To: q.To, KeepAttempts: q.KeepAttempts}}
	return &requeuer{Server: s, req: req, patch: q.Params}, &l, nil
}

// patchParams changes the params of a job by a JSON merge patch.
func patchParams(spec *job.Spec, patch []byte) error {
	if spec.Payload != nil {
		return errors.New("its payload is MessagePack, which a merge patch cannot change; replay the job with its own params")
	}
	params, err := mergepatch.Apply(spec.Params, patch)
	if err != nil {
		return fmt.Errorf("its params cannot be changed: %w", err)
	}
	spec.Params = params
	return nil
}
