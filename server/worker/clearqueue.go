package worker

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Removal of many jobs of a queue for an Overhop client.

// Clear removes the jobs of a queue that are in the given states, in batches, and
// returns how many. It never removes active or new jobs.
func (s *session) Clear(ctx context.Context, queue string, states []job.State) (removed int, err error) {
	if err := s.checkUserQueue(ctx, queue); err != nil {
		return 0, err
	}
	for _, state := range states {
		if state == job.Active || state == job.New {
			continue
		}
		for _, state := range statesOf(state) {
			n, err := s.clearState(ctx, queue, state)
			removed += n
			if err != nil {
				return removed, err
			}
		}
	}
	return removed, nil
}

// clearBatchSize is how many jobs are removed at the same time: the authority commits
// concurrent commands in one entry. It is half of the requests from other nodes that
// the authority serves at once, so that others get through as well.
const clearBatchSize = 32

// clearState removes the jobs of a queue that are in one state.
func (s *session) clearState(ctx context.Context, queue string, state job.State) (removed int, err error) {
	for {
		var views []job.View
		s.c.Ledger.View(func(l *ledger.Ledger) { views = l.List(queue, state, 0, clearBatchSize) })
		var group crash.Group
		var deleted atomic.Int64
		for _, v := range views {
			group.Go(func() error {
				err := s.RemoveJob(ctx, v.ID)
				if err == nil {
					deleted.Add(1)
				} else if errors.Is(err, job.ErrJobNotFound) || errors.Is(err, job.ErrNotRemovable) {
					return nil // removed by another client, or active by now
				}
				return err
			})
		}
		err := group.Wait()
		removed += int(deleted.Load())
		if err != nil || deleted.Load() == 0 {
			return removed, err
		}
	}
}

// Obliterate removes a queue with its jobs. It pauses the queue first, so that no more
// jobs start. If jobs are active it fails without force, before it changes anything;
// with force it recalls them and removes the queue when they have ended. If ctx ends
// first the queue stays paused, and a repeated call continues from there.
func (s *session) Obliterate(ctx context.Context, queue string, force bool) (removed int, err error) {
	if err := s.checkUserQueue(ctx, queue); err != nil {
		return 0, err
	}
	_, err = s.propose(ctx, &ledger.PauseQueue{Name: queue, Paused: true, OnlyIfIdle: !force})
	if err != nil && !errors.Is(err, job.ErrQueuePaused) {
		return 0, err
	}
	recalled := make(map[job.ID]bool)
	for {
		_, changed := s.c.Ledger.Applied()
		n, err := s.Clear(ctx, queue, []job.State{job.Waiting, job.Delayed, job.Completed, job.Failed})
		removed += n
		if err != nil {
			return removed, err
		}
		remaining, err := s.recallActive(ctx, queue, force, recalled)
		if err != nil {
			return removed, err
		}
		if remaining == 0 {
			return removed, s.RemoveQueue(ctx, queue)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return removed, &job.UnavailableError{
				Reason:     fmt.Sprintf("queue %s is paused and %d of its jobs are recalled and have not ended yet: ask again, or resume it", queue, remaining),
				RetryAfter: time.Second,
			}
		}
	}
}

// recallActive recalls a queue's active jobs, each once, and returns how many are
// active. Without force it fails if there are any: another client has resumed the
// queue.
func (s *session) recallActive(ctx context.Context, queue string, force bool, recalled map[job.ID]bool) (remaining int, err error) {
	var active []job.View
	s.c.Ledger.View(func(l *ledger.Ledger) { active = l.List(queue, job.Active, 0, 1000) })
	if len(active) > 0 && !force {
		return len(active), fmt.Errorf("the queue was resumed, %d of its jobs are active: %w", len(active), job.ErrQueueNotEmpty)
	}
	for _, v := range active {
		if recalled[v.ID] {
			continue
		}
		recalled[v.ID] = true
		_, err := s.propose(ctx, &ledger.CancelJob{Job: v.ID, Reason: "queue removed", QueueGone: true})
		if err != nil && !errors.Is(err, job.ErrJobEnded) && !errors.Is(err, job.ErrJobNotFound) {
			return 0, err
		}
	}
	return len(active), nil
}
