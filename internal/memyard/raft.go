package memyard

import (
	"context"
	"errors"
	"time"

	"github.com/yardmaster-dev/yardmaster/consensus"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

var errTermOver = errors.New("the term is over")

// maxSubmitted is more than a tenure has in flight.
const maxSubmitted = 1024

// entry is a submitted entry. done is closed once commit or err is set.
type entry struct {
	scheduler.Proposal
	done   chan struct{}
	commit scheduler.Commit
	err    error
}

// Lead makes a member the leader for one term: it runs the member's scheduler, and commits
// its entries on all running members. Lead returns the scheduler's error when the tenure
// has ended, which it does with ctx. It must be called from a goroutine of the member, and
// no other member may lead meanwhile.
func (y *Yard) Lead(ctx context.Context, m *Member) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	submitted := make(chan *entry, maxSubmitted)
	y.mu.Lock()
	y.term++
	term := y.term
	y.leader = m
	m.setSubmitted(submitted)
	y.mu.Unlock()
	committed := make(chan struct{})
	go func() {
		defer close(committed)
		y.commit(ctx, m, term, submitted)
	}()
	err := m.Scheduler.Run(ctx, term)
	cancel()
	<-committed
	y.mu.Lock()
	defer y.mu.Unlock()
	y.leader = nil
	m.setSubmitted(nil)
	return err
}

// commit commits what the leader submits until ctx ends.
func (y *Yard) commit(ctx context.Context, leader *Member, term uint64, submitted chan *entry) {
	for {
		select {
		case <-ctx.Done():
			for { // the tenure has ended or ends: nobody waits for what comes later
				select {
				case e := <-submitted:
					e.err = errTermOver
					close(e.done)
				default:
					return
				}
			}
		case e := <-submitted:
			if y.cfg.CommitTime > 0 {
				time.Sleep(y.cfg.CommitTime)
			}
			y.apply(leader, term, e)
		}
	}
}

// apply applies an entry to the leader's ledger, answers, and applies it to those of the
// others. A leader that was killed commits nothing.
func (y *Yard) apply(leader *Member, term uint64, e *entry) {
	y.mu.Lock()
	defer y.mu.Unlock()
	defer close(e.done)
	if !leader.Running() {
		e.err = errTermOver
		return
	}
	y.index++
	at := ledger.Stamp{Index: y.index, Term: term, At: e.At, Epoch: e.Epoch}
	e.commit = scheduler.Commit{Index: y.index, Results: leader.applyEntry(at, e.Commands)}
	for _, m := range y.members {
		if m != leader && m.Running() {
			m.applyEntry(at, e.Commands)
		}
	}
}

// applyEntry applies the commands of an entry to the member's ledger.
func (m *Member) applyEntry(at ledger.Stamp, commands []ledger.Command) []ledger.Result {
	results := m.replica.apply(at, commands)
	m.follow()
	return results
}

// follow updates the holder of the authority from the ledger.
func (m *Member) follow() {
	var a ledger.Authority
	m.View(func(l *ledger.Ledger) { a = l.Authority() })
	m.Watch.Set(a.Owner, a.Epoch)
}

// Submit implements scheduler.Ledger.
func (m *Member) Submit(p scheduler.Proposal) (func(context.Context) (scheduler.Commit, error), error) {
	submitted := m.getSubmitted()
	if submitted == nil {
		return nil, &consensus.NotLeaderError{}
	}
	e := &entry{Proposal: p, done: make(chan struct{})}
	submitted <- e
	return func(ctx context.Context) (scheduler.Commit, error) {
		select {
		case <-e.done:
			return e.commit, e.err
		case <-ctx.Done():
			return scheduler.Commit{}, ctx.Err()
		}
	}, nil
}
