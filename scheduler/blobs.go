package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Parameters of freeing the large bodies that no job needs.
const (
	bodySweepInterval = time.Second
	bodyListShare     = 10               // a sweep is followed by a pause of this many times the duration of its listing, at least
	bodyGrace         = 10 * time.Minute // for the record of a body to be stored: far more than nodes allow, and their clocks may differ
	maxBodyRemovals   = 8                // at the same time
)

// StoredBody is a large body, which is stored as a blob.
type StoredBody struct {
	Name   string
	Owner  job.ID    // see [job.Blob.Owner]
	Stored time.Time // by the clock of the node that stored it
}

// bodySweeper removes the large bodies that no job and no dead letter needs. It compares
// all stored bodies with the ledger each time, so that it needs no record of what is to
// be removed: a body whose removal fails, or that was stored for a job that was never
// accepted, is found by a later sweep.
type bodySweeper struct {
	ledger Ledger
	lanes  Lanes
	log    *slog.Logger

	ingested func() time.Time // returns a time before which no record was stored that is not ingested; zero: none is known

	listing time.Duration // how long the bodies took to list at the last sweep
}

// run removes bodies until ctx ends.
func (s *bodySweeper) run(ctx context.Context) error {
	pause := time.Duration(bodySweepInterval)
	for backoff.Sleep(ctx, pause) == nil {
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("removal of large bodies failed, retrying", "err", err)
			pause = reclaimInterval
			continue
		}
		pause = max(bodySweepInterval, bodyListShare*s.listing)
	}
	return nil
}

// sweep removes what is not needed now, unless a backup holds the bodies.
func (s *bodySweeper) sweep(ctx context.Context) error {
	started := time.Now()
	bodies, err := s.lanes.Bodies(ctx)
	s.listing = time.Since(started)
	if err != nil || len(bodies) == 0 {
		return err
	}
	unneeded := s.unneeded(bodies)
	if len(unneeded) == 0 {
		return nil
	}
	// The dead letters are listed after the ledger was read: a body whose letter was not
	// published then is needed according to the ledger.
	letters, err := s.lanes.DeadLetterBodies(ctx)
	if err != nil {
		return err
	}
	removals, ctx := errgroup.WithContext(ctx)
	removals.SetLimit(maxBodyRemovals)
	for _, body := range unneeded {
		if letters[body.Owner] {
			continue
		}
		removals.Go(func() error {
			if err := s.lanes.RemoveBody(ctx, body.Name); err != nil {
				return fmt.Errorf("body %s: %w", body.Name, err)
			}
			return nil
		})
	}
	return removals.Wait()
}

// unneeded returns the bodies that no job of the ledger may still need, nor a dead letter
// that is not published. A body whose owner the ledger does not know may belong to a
// record that is not ingested yet, or not stored yet, until bodyGrace has passed.
func (s *bodySweeper) unneeded(bodies []StoredBody) (unneeded []StoredBody) {
	ingested := s.ingested() // before the ledger is read
	s.ledger.View(func(l *ledger.Ledger) {
		// A backup takes its hold before it copies the ledger. So without a hold here, the
		// copy is later and needs no body that this ledger does not.
		if holder, _ := l.Holder(); holder != "" {
			return
		}
		letters := make(map[job.ID]bool)
		for _, letter := range l.DeadLettersAfter(0) {
			letters[letter.BlobOwner] = true
		}
		for _, body := range bodies {
			if l.NeedsBody(body.Owner) || letters[body.Owner] {
				continue
			}
			if _, known := l.Known(body.Owner); known || body.Stored.Before(ingested.Add(-bodyGrace)) {
				unneeded = append(unneeded, body)
			}
		}
	})
	return unneeded
}
