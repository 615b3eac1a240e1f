package node

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"yardmaster/job"
	"yardmaster/ledger"
)

// This file removes many jobs of a queue for a session.

// Clear removes a queue's jobs in some states, a page of them at a time. Jobs
// that are being run are never touched.
func (s *session) Clear(ctx context.Context, queue string, states []job.State) (removed int, err error) {
	if err := s.usersQueue(ctx, queue); err != nil {
		return 0, err
	}
	for _, state := range states {
		if state == job.Active || state == job.New {
			continue
		}
		n, err := s.clearState(ctx, queue, state)
		if removed += n; err != nil {
			return removed, err
		}
	}
	return removed, nil
}

// clearAtOnce is how many jobs are removed side by side: the authority puts
// what comes together into one entry. It is half of what it takes from other
// nodes at once, so that it hears them all the while.
const clearAtOnce = 32

func (s *session) clearState(ctx context.Context, queue string, state job.State) (removed int, err error) {
	for {
		var views []job.View
		s.n.raft.View(func(l *ledger.Ledger) { views = l.List(queue, state, 0, clearAtOnce) })
		var group errgroup.Group
		var gone atomic.Int64
		for _, v := range views {
			group.Go(func() error {
				err := s.RemoveJob(ctx, v.ID)
				if err == nil {
					gone.Add(1)
				} else if errors.Is(err, job.ErrJobNotFound) || errors.Is(err, job.ErrNotRemovable) {
					return nil // somebody else was faster
				}
				return err
			})
		}
		err := group.Wait()
		if removed += int(gone.Load()); err != nil || gone.Load() == 0 {
			return removed, err
		}
	}
}

// Obliterate removes a queue with its jobs. It is paused first, so that no more
// of them begin; without force that is refused, and nothing has happened, if
// some are active. By force those are recalled, and the queue goes when they
// have ended. If ctx ends before, the queue stays paused, and to ask again goes
// on from there.
func (s *session) Obliterate(ctx context.Context, queue string, force bool) (removed int, err error) {
	if err := s.usersQueue(ctx, queue); err != nil {
		return 0, err
	}
	_, err = s.do(ctx, &ledger.PauseQueue{Name: queue, Paused: true, Idle: !force})
	if err != nil && !errors.Is(err, job.ErrQueuePaused) {
		return 0, err
	}
	recalled := make(map[job.ID]bool)
	for {
		_, changed := s.n.raft.Applied()
		n, err := s.Clear(ctx, queue, []job.State{job.Waiting, job.Delayed, job.Completed, job.Failed})
		if removed += n; err != nil {
			return removed, err
		}
		left, err := s.recallActive(ctx, queue, force, recalled)
		if err != nil {
			return removed, err
		}
		if left == 0 {
			return removed, s.RemoveQueue(ctx, queue)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return removed, &job.UnavailableError{
				Reason:     fmt.Sprintf("queue %s is paused and %d of its jobs are recalled and have not ended yet: ask again, or resume it", queue, left),
				RetryAfter: time.Second,
			}
		}
	}
}

// recallActive has a queue's active jobs stopped, each once, and tells whether
// there are any. Without force that is refused: somebody has resumed the queue.
func (s *session) recallActive(ctx context.Context, queue string, force bool, recalled map[job.ID]bool) (left int, err error) {
	var active []job.View
	s.n.raft.View(func(l *ledger.Ledger) { active = l.List(queue, job.Active, 0, 1000) })
	if len(active) > 0 && !force {
		return len(active), fmt.Errorf("the queue was resumed, %d of its jobs are active: %w", len(active), job.ErrQueueNotEmpty)
	}
	for _, v := range active {
		if recalled[v.ID] {
			continue
		}
		recalled[v.ID] = true
		_, err := s.do(ctx, &ledger.CancelJob{Job: v.ID, Reason: "queue removed", QueueGone: true})
		if err != nil && !errors.Is(err, job.ErrJobEnded) && !errors.Is(err, job.ErrJobNotFound) {
			return 0, err
		}
	}
	return len(active), nil
}
