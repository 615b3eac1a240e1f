package scheduler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/wakeup"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Parameters of retention.
const (
	retentionInterval = 10 * time.Second // between two applications of the settings, unless one changes
	retentionTimeout  = 10 * time.Second
)

// retention applies the ledger's retention settings to the streams, and removes the dead
// letters that a queue's own settings do not keep. The ledger itself forgets finished jobs.
// All of it is repeated, so that a crash between two steps only delays the rest.
type retention struct {
	loop  *eventLoop
	lanes Lanes
	await func(context.Context) // blocks until the streams exist
	wake  chan struct{}

	// Of the loop's goroutine.
	index   uint64 // of the ledger whose settings were last applied, or could not be; 0: none yet
	problem string // why not all of them are applied; "": they are
}

// run applies the settings every retentionInterval, and when they change, until ctx ends.
func (r *retention) run(ctx context.Context) error {
	r.await(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-r.wake:
		}
		var index uint64
		err := r.declare(ctx)
		if err == nil {
			index, err = r.apply(ctx)
		}
		if err != nil && ctx.Err() == nil && err.Error() != logged {
			logged = err.Error()
			r.loop.log.Warn("retention settings not applied, retrying", "err", err)
		}
		if err == nil {
			logged = ""
		}
		r.loop.post(func() {
			r.index = max(r.index, index)
			if r.problem = ""; err != nil {
				r.problem = strings.ReplaceAll(err.Error(), "\n", "; ")
			}
		})
		timer.Reset(retentionInterval)
	}
}

// declare commits the settings of the configuration file, unless the ledger has them.
func (r *retention) declare(ctx context.Context) error {
	same := false
	r.loop.ledger.View(func(l *ledger.Ledger) { same = slices.Equal(l.Retention().Declared, r.loop.cfg.Retention) })
	if same {
		return nil
	}
	result, err := r.loop.commit(ctx, &ledger.SetRetention{Declared: true, Settings: r.loop.cfg.Retention})
	return errors.Join(err, result.Err)
}

// apply applies the settings once. It returns the index of the ledger that has them.
func (r *retention) apply(ctx context.Context) (index uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, retentionTimeout)
	defer cancel()
	var inForce job.Retention
	var queues []ledger.QueueView
	var now time.Time
	r.loop.ledger.View(func(l *ledger.Ledger) {
		index, inForce, queues, now = l.Index(), l.Retention().InForce(), l.Queues(), l.Clock().Wall
	})
	err = r.lanes.ApplyRetention(ctx, inForce)
	for i := range queues {
		own := queues[i].Config.Retention
		age, keep := own.Age(job.KeptFailed), own.Get(job.KeptFailed, job.BoundCount)
		if age == 0 && keep == 0 {
			continue
		}
		var before time.Time
		if age > 0 {
			before = now.Add(-age)
		}
		if evictErr := r.lanes.EvictDeadLetters(ctx, queues[i].Name, before, keep); evictErr != nil {
			return index, errors.Join(err, fmt.Errorf("dead letters of queue %s: %w", queues[i].Name, evictErr))
		}
	}
	return index, err
}

// changed applies the settings soon, after a command that may have changed some.
func (r *retention) changed() { wakeup.Send(r.wake) }
