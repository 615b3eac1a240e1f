package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Limits of storing the errors of attempts.
const (
	maxPlainError        = 256             // bytes of a message without details, which the ledger keeps
	maxStoringErrors     = 64              // at once
	maxStoringErrorBytes = 64 << 20        // of all errors that wait to be stored
	errorStoreTimeout    = 2 * time.Second // from Report until the error is stored
	errorStorePause      = 5 * time.Second // after an error could not be stored: until then no other is tried
)

// errorStore stores errors of attempts that are too large for the ledger, or that the ledger would drop
// once the next attempt has failed, and then passes the outcomes on. An error that cannot be stored delays
// its outcome only a little: the outcome keeps the beginning and the end of the error.
type errorStore struct {
	transport Transport
	log       *slog.Logger
	node      string
	maxBytes  int // of an error
	pool      taskPool
	bytes     atomic.Int64          // of all errors that wait to be stored
	pausedTo  atomic.Int64          // in Unix nanoseconds; no error is tried before
	stored    func(*pendingOutcome) // called for every outcome
}

// cut shortens the fault of an outcome to [job.MaxInlineFault] bytes. It returns the error that is to be
// stored before the outcome is reported, or nil if the report and history have all of the error.
func (s *errorStore) cut(outcome *job.Outcome) *job.AttemptError {
	fault := outcome.Fault
	if fault == nil {
		return nil
	}
	fault.Cut(s.maxBytes)
	kept := &job.AttemptError{N: outcome.N, At: time.Now().UTC(), Node: s.node, Error: *fault}
	fault.Cut(job.MaxInlineFault)
	if len(kept.Error.Details) == 0 && len(kept.Error.Message) <= maxPlainError {
		return nil
	}
	return kept
}

// add stores an error in the background, unless too many errors wait or an earlier one could not be
// stored a moment ago, and then passes its outcome on.
func (s *errorStore) add(pending *pendingOutcome, kept *job.AttemptError) {
	now := time.Now()
	size := int64(kept.Error.Size())
	if now.UnixNano() < s.pausedTo.Load() {
		s.stored(pending)
		return
	}
	if s.bytes.Add(size) > maxStoringErrorBytes {
		s.bytes.Add(-size)
		s.stored(pending)
		return
	}
	deadline := now.Add(errorStoreTimeout)
	s.pool.add(func(ctx context.Context) {
		defer s.stored(pending)
		defer s.bytes.Add(-size)
		if time.Now().UnixNano() < s.pausedTo.Load() {
			return
		}
		ctx, cancel := context.WithDeadline(ctx, deadline)
		defer cancel()
		err := s.transport.StoreError(ctx, pending.outcome.Job, kept)
		if err == nil {
			return
		}
		now := time.Now()
		if until := s.pausedTo.Load(); now.UnixNano() >= until && s.pausedTo.CompareAndSwap(until, now.Add(errorStorePause).UnixNano()) {
			s.log.Warn("errors of attempts not stored for a while, jobs keep a part of them", "job", pending.outcome.Job.String(), "err", err)
		}
	})
}
