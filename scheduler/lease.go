package scheduler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/yardmaster-dev/yardmaster/internal/backoff"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// acquire acquires the authority lease and returns the new tenure, with its state loaded
// from the ledger. In the cluster's first tenure it also initializes the ledger.
func (s *Scheduler) acquire(ctx context.Context) (*tenure, error) {
	var clocks memberClocks
	var applied time.Duration // ago
	s.ledger.View(func(l *ledger.Ledger) {
		clocks.last, clocks.epoch, applied = l.Clock(), l.Authority().Epoch, s.ledger.Passed(l)
	})
	passed, single := s.elapsedSince(&clocks), len(s.cfg.Members) <= 1
	clock := newStampClock(clocks.last, passed, single)
	if clocks.elapsedKnown = single || passed > 0 || clocks.last.Now.Unix() <= 0; !clocks.elapsedKnown {
		clock = clock.show(applied)
	}
	requestedAt := time.Now()
	at := clock.times()
	c, err := s.commit(ctx, Proposal{At: at.Now, Offsets: at.Offsets(), Commands: []ledger.Command{
		&ledger.Lead{Owner: s.cfg.Node, Until: at.Now.Add(leaseTime), Level: ledger.Level},
	}})
	if err != nil {
		return nil, err
	}
	t := newTenure(s, clock, requestedAt.Add(trustTime))
	t.clocks = clocks
	s.ledger.View(func(l *ledger.Ledger) {
		a := l.Authority()
		t.loop.epoch = a.Epoch
		if a.Owner != s.cfg.Node || a.Epoch < c.Index {
			err = fmt.Errorf("%s acquired it at the same time", a.Owner)
		}
	})
	if err != nil {
		return nil, err
	}
	return t, s.bootstrap(ctx, t)
}

// elapsedSince returns how much time has passed since the last entry if the last authority was a
// tenure of this scheduler: its clock has gone on. Otherwise it returns 0.
func (s *Scheduler) elapsedSince(c *memberClocks) time.Duration {
	if s.lastEpoch == 0 || s.lastEpoch != c.epoch {
		return 0
	}
	return s.lastClock.times().Elapsed.Sub(c.last.Elapsed)
}

// commit submits an entry and waits until it is applied. It returns an error also
// if the ledger refuses one of the commands.
func (s *Scheduler) commit(ctx context.Context, p Proposal) (Commit, error) {
	wait, err := s.ledger.Submit(p)
	if err != nil {
		return Commit{}, err
	}
	c, err := wait(ctx)
	if err != nil {
		return Commit{}, err
	}
	for _, r := range c.Results {
		if r.Err != nil {
			return Commit{}, r.Err
		}
	}
	return c, nil
}

// bootstrap loads a tenure's state from the ledger. In a new cluster it first commits the
// cluster's secret and the identities of the lanes, because their streams are created
// with these.
func (s *Scheduler) bootstrap(ctx context.Context, t *tenure) error {
	exists := false
	s.ledger.View(func(l *ledger.Ledger) { exists = len(l.Lanes()) > 0 })
	if !exists {
		c := &ledger.Bootstrap{Secret: make([]byte, 32)}
		rand.Read(c.Secret)
		for range s.cfg.Members {
			c.Lanes = append(c.Lanes, uuid.NewString())
		}
		at := t.loop.clock.times()
		if _, err := s.commit(ctx, Proposal{At: at.Now, Offsets: at.Offsets(), Epoch: t.loop.epoch, Commands: []ledger.Command{c}}); err != nil {
			return fmt.Errorf("bootstrap the cluster: %w", err)
		}
	}
	s.ledger.View(func(l *ledger.Ledger) {
		t.restoring, _ = l.Restoring()
		t.loadLedger(l)
	})
	return nil
}

var errRestore = errors.New("a restore has begun or ended: the next tenure starts with another ledger")

// endOnRestore ends the tenure if a restore has begun, because a restore removes the
// streams, or if the restore that the tenure began with has ended. A restored ledger also
// refuses the tenure's commands by their epoch.
func (t *tenure) endOnRestore() {
	var id string
	t.loop.ledger.View(func(l *ledger.Ledger) { id, _ = l.Restoring() })
	if id != t.restoring && t.ended == nil {
		t.ended = errRestore
	}
}

// lease is the authority lease of a tenure. Any goroutine may call trusted and watch;
// the rest belongs to the loop's goroutine.
type lease struct {
	loop         *eventLoop
	trustedUntil atomic.Pointer[time.Time] // by this node's monotonic clock
	renewedAt    time.Time                 // when the renewal was last queued
}

func newLease(loop *eventLoop, trusted time.Time) *lease {
	l := &lease{loop: loop, renewedAt: loop.startedAt}
	l.trustedUntil.Store(&trusted)
	return l
}

// trusted returns until when the lease can be trusted. Any goroutine may call it.
func (l *lease) trusted() time.Time { return *l.trustedUntil.Load() }

var errLeaseLost = errors.New("the lease could not be renewed in time")

// watch returns an error, which ends the tenure, when the lease can no longer be
// trusted. The sweep renews the lease.
func (l *lease) watch(ctx context.Context) error {
	for {
		remaining := time.Until(l.trusted())
		if remaining <= 0 {
			return errLeaseLost
		}
		if backoff.Sleep(ctx, remaining) != nil {
			return nil
		}
	}
}

// renew submits the renewal of the lease, and with it the authority's heartbeat event,
// whose detail is phase: what the authority is doing, in one word. Once the ledger has
// renewed the lease, it can be trusted for trustTime from the call of renew.
func (l *lease) renew(phase string) {
	requestedAt := time.Now()
	l.renewedAt = requestedAt
	l.loop.submit(&ledger.Observe{Observations: []ledger.Observation{
		{Event: ledger.RunHeartbeat, Subject: l.loop.cfg.Node, Detail: phase},
	}}, nil)
	l.loop.submit(&ledger.Renew{Until: l.loop.clock.now().Add(leaseTime)}, func(r ledger.Result, _ uint64) {
		if r.Err == nil {
			until := requestedAt.Add(trustTime)
			l.trustedUntil.Store(&until)
		}
	})
}

// firstConsistencyCheck is the time from a tenure's start to its first consistency
// check, unless Config.ConsistencyCheckInterval is shorter.
const firstConsistencyCheck = 30 * time.Second

// submitConsistencyCheck submits a consistency check, which has all members publish their
// ledgers' hashes at one index, if one is due: the first firstConsistencyCheck after the
// tenure's start, and then one every ConsistencyCheckInterval. An interval of 0 means none.
func (t *tenure) submitConsistencyCheck(now time.Time) {
	every := t.loop.cfg.ConsistencyCheckInterval
	if every == 0 {
		return
	}
	if t.consistencyCheckedAt.IsZero() { // as if the last check were so long ago that the first is due in time
		t.consistencyCheckedAt = now.Add(min(firstConsistencyCheck, every) - every)
	}
	if now.Sub(t.consistencyCheckedAt) >= every {
		t.consistencyCheckedAt = now
		t.loop.submit(&ledger.CheckConsistency{}, nil)
	}
}

// phase returns what the authority is doing, in one word, for its heartbeat event.
func (t *tenure) phase() string {
	switch {
	case t.lanes.blocked != "":
		return "blocked"
	case len(t.dispatches.running) > 0:
		return "execute"
	}
	return "idle"
}
