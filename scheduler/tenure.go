package scheduler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"yardmaster/ledger"
)

// acquire commits the acquisition, and lays the yard's foundations if this is
// its first tenure.
func (s *Scheduler) acquire(ctx context.Context) (*mind, error) {
	var ledgerNow time.Time
	s.ledger.View(func(l *ledger.Ledger) { ledgerNow = l.Now() })
	clock := newStampClock(ledgerNow, len(s.cfg.Members) <= 1)
	asked := time.Now()
	at := clock.now()
	c, err := s.commit(ctx, Proposal{At: at, Commands: []ledger.Command{
		&ledger.Lead{Owner: s.cfg.Node, Until: at.Add(leaseTime)},
	}})
	if err != nil {
		return nil, err
	}
	m := newMind(s, clock, asked.Add(trustTime))
	s.ledger.View(func(l *ledger.Ledger) {
		a := l.Authority()
		if m.epoch = a.Epoch; a.Owner != s.cfg.Node || a.Epoch < c.Index {
			err = fmt.Errorf("lost to %s at once", a.Owner)
		}
	})
	if err != nil {
		return nil, err
	}
	return m, m.found(ctx)
}

// commit proposes an entry and waits for it; the refusal of any command is an
// error.
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

// found commits the yard's secret and the identities of its lanes, once and
// before any stream is made.
func (m *mind) found(ctx context.Context) error {
	founded := false
	m.ledger().View(func(l *ledger.Ledger) { founded = len(l.Lanes()) > 0 })
	if !founded {
		c := &ledger.Found{Secret: make([]byte, 32)}
		rand.Read(c.Secret)
		for range m.cfg.Members {
			c.Lanes = append(c.Lanes, uuid.NewString())
		}
		if _, err := m.sched.commit(ctx, Proposal{At: m.clock.now(), Epoch: m.epoch, Commands: []ledger.Command{c}}); err != nil {
			return fmt.Errorf("found the yard: %w", err)
		}
	}
	m.ledger().View(func(l *ledger.Ledger) {
		m.bringing, _ = l.Bringing()
		m.adopt(l)
	})
	return nil
}

var errBringing = errors.New("a restore has begun or ended: the next tenure finds another ledger")

// lookBringing ends the tenure when a restore begins, because it takes the
// streams away, and when it is over, also if the next has begun meanwhile. A new
// ledger fences it by its epoch, too.
func (m *mind) lookBringing() {
	var id string
	m.ledger().View(func(l *ledger.Ledger) { id, _ = l.Bringing() })
	if id != m.bringing && m.fenced == nil {
		m.fenced = errBringing
	}
}

var errTrustLost = errors.New("the lease could not be renewed in time")

// hold ends the tenure when the lease, which the sweep renews, can no longer be
// trusted.
func (m *mind) hold(ctx context.Context) error {
	for {
		trust := time.NewTimer(time.Until(m.trusted()))
		select {
		case <-ctx.Done():
			trust.Stop()
			return nil
		case <-trust.C:
			if time.Until(m.trusted()) <= 0 {
				return errTrustLost
			}
		}
	}
}

// renew queues the renewal, and with it the heartbeat that observers see.
func (m *mind) renew() {
	asked := time.Now()
	m.renewedAt = asked
	m.queue(&ledger.Observe{Observations: []ledger.Observation{
		{Event: ledger.RunHeartbeat, Subject: m.cfg.Node, Detail: m.phase()},
	}}, nil)
	m.queue(&ledger.Renew{Until: m.clock.now().Add(leaseTime)}, func(r ledger.Result, _ uint64) {
		if r.Err == nil {
			until := asked.Add(trustTime)
			m.trustedUntil.Store(&until)
		}
	})
}

// firstProof is how soon after its beginning a tenure asks for the first proof.
const firstProof = 30 * time.Second

// prove has all members prove that their ledgers are the same, when it is time.
func (m *mind) prove(now time.Time) {
	every := m.cfg.ProveEvery
	if every == 0 {
		return
	}
	if m.provedAt.IsZero() {
		m.provedAt = now.Add(min(firstProof, every) - every)
	}
	if now.Sub(m.provedAt) >= every {
		m.provedAt = now
		m.queue(&ledger.Prove{}, nil)
	}
}

// phase is what the authority is doing, in one word, for its heartbeat.
func (m *mind) phase() string {
	switch {
	case m.blocked != "":
		return "blocked"
	case len(m.flights) > 0:
		return "execute"
	}
	return "idle"
}

func (m *mind) trusted() time.Time { return *m.trustedUntil.Load() }
