package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
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
	bodyGrace         = 10 * time.Minute // for the record of a body to be stored: far more than nodes allow
	maxBodyRemovals   = 8                // at the same time
)

// StoredBody is a large body, which is stored as a blob.
type StoredBody struct {
	Name   string
	Owner  job.ID    // see [job.Blob.Owner]
	Stored time.Time // by the wall clock of the node that stored it, which may be wrong
	Size   uint64    // bytes, estimated
}

// bodySweeper removes the large bodies that no job and no dead letter needs. It compares
// all stored bodies with the ledger each time, so that it needs no record of what is to
// be removed: a body whose removal fails, or that was stored for a job that was never
// accepted, is found by a later sweep, or by those of a later authority.
type bodySweeper struct {
	loop   *eventLoop
	ledger Ledger
	lanes  Lanes
	log    *slog.Logger

	ingested func() time.Time // returns a time before which no record was stored that is not ingested; zero: none is known

	listing time.Duration // how long the bodies took to list at the last sweep

	// unknown is since when this sweeper has seen each body, by name, whose job the ledger does not
	// know. The monotonic clock measures it: after a step of a wall clock, or when the clock of the
	// node that stored it is behind, a body would seem old whose record is still to come.
	unknown map[string]time.Time
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
	candidates, unowned, index := s.candidates(bodies)
	if len(candidates) == 0 {
		return nil
	}
	// The dead letters are listed after the ledger was read: a body whose letter was not
	// published then is needed according to the ledger.
	letters, err := s.lanes.DeadLetterBodies(ctx)
	if err != nil {
		return err
	}
	unneeded := slices.DeleteFunc(slices.Clone(candidates), func(b bodyCandidate) bool { return letters[b.Owner] })
	if unneeded, err = s.release(ctx, unneeded, index); err != nil {
		return err
	}
	if err := s.removeAll(ctx, unneeded); err != nil {
		return err
	}
	held := uint64(0) // bytes
	for _, b := range bodies {
		held += b.Size
	}
	for _, b := range unneeded {
		held -= b.Size
	}
	ofLetters := slices.DeleteFunc(candidates, func(b bodyCandidate) bool { return !letters[b.Owner] })
	return s.evictLetters(ctx, ofLetters, 1-float64(unowned)/float64(max(1, held)))
}

// bodyCandidate is a body that no unfinished job needs.
type bodyCandidate struct {
	StoredBody
	ofFailed bool // the ledger has a failed job that would need it if it were retried
}

// release returns the bodies that may be removed. Those of failed jobs are removed only
// after the ledger has recorded it: from then on, a retry is refused unless the caller has
// found the dead letter since. index is that of the ledger that was read before the dead
// letters. If a job was retried since then, these bodies are left for the next sweep.
func (s *bodySweeper) release(ctx context.Context, bodies []bodyCandidate, index uint64) ([]bodyCandidate, error) {
	if !slices.ContainsFunc(bodies, func(b bodyCandidate) bool { return b.ofFailed }) {
		return bodies, nil
	}
	result, err := s.loop.commit(ctx, &ledger.ReleaseBodies{AsOf: index})
	if err == nil && errors.Is(result.Err, ledger.ErrRecordNeeded) {
		return slices.DeleteFunc(bodies, func(b bodyCandidate) bool { return b.ofFailed }), nil
	}
	return bodies, errors.Join(err, result.Err)
}

// evictLetters removes the oldest dead letters whose bodies are in bodies while jobs and
// letters use more than half of the stream of large bodies: from there on, jobs with large
// bodies are acknowledged more slowly, which must not happen because of jobs that have
// failed. owned is the share of the stored bytes that belongs to jobs and letters. A later
// sweep removes the bodies.
func (s *bodySweeper) evictLetters(ctx context.Context, bodies []bodyCandidate, owned float64) error {
	if len(bodies) == 0 {
		return nil
	}
	used, limit, err := s.lanes.BodySpace(ctx)
	used = uint64(float64(used) * owned)
	if err != nil || limit == 0 || used <= limit/2 {
		return err
	}
	slices.SortFunc(bodies, func(a, b bodyCandidate) int { return a.Stored.Compare(b.Stored) })
	excess := used - limit/2
	evicted := 0
	for freed := uint64(0); evicted < len(bodies) && freed < excess; evicted++ {
		if err := s.lanes.RemoveDeadLettersOf(ctx, bodies[evicted].Owner); err != nil {
			return fmt.Errorf("evict dead letters with body %s: %w", bodies[evicted].Name, err)
		}
		freed += bodies[evicted].Size
	}
	s.log.Warn("dead letters with large bodies evicted, their stream is half full", "letters", evicted, "used_by_jobs_and_letters", used, "limit", limit)
	return nil
}

// removeAll removes bodies.
func (s *bodySweeper) removeAll(ctx context.Context, bodies []bodyCandidate) error {
	removals, ctx := errgroup.WithContext(ctx)
	removals.SetLimit(maxBodyRemovals)
	for _, body := range bodies {
		removals.Go(func() error {
			if err := s.lanes.RemoveBody(ctx, body.Name); err != nil {
				return fmt.Errorf("body %s: %w", body.Name, err)
			}
			return nil
		})
	}
	return removals.Wait()
}

// candidates returns the bodies that no unfinished job of the ledger needs, nor a dead
// letter that is not published, and the ledger's index. A body whose owner the ledger does
// not know may belong to a record that is not ingested yet, or not stored yet, until it has
// been seen for bodyGrace; unowned is the total size of these bodies, in bytes.
func (s *bodySweeper) candidates(bodies []StoredBody) (candidates []bodyCandidate, unowned, index uint64) {
	now, ingested := time.Now(), s.ingested() // before the ledger is read
	s.ledger.View(func(l *ledger.Ledger) {
		// A backup takes its hold before it copies the ledger. So without a hold here, the
		// copy is later and needs no body that this ledger does not.
		if holder, _ := l.Holder(); holder != "" {
			return
		}
		index = l.Index()
		seen := make(map[string]time.Time)
		defer func() { s.unknown = seen }()
		letters := make(map[job.ID]bool)
		for _, letter := range l.DeadLettersAfter(0) {
			letters[letter.BlobOwner] = true
		}
		for _, body := range bodies {
			if l.NeedsBody(body.Owner) || letters[body.Owner] {
				continue
			}
			if _, known := l.Known(body.Owner); !known {
				since, ok := s.unknown[body.Name]
				if !ok {
					since = now
				}
				seen[body.Name] = since
				if !since.Before(ingested.Add(-bodyGrace)) {
					unowned += body.Size
					continue
				}
			}
			candidates = append(candidates, bodyCandidate{body, l.FailedNeedsBody(body.Owner)})
		}
	})
	return candidates, unowned, index
}
