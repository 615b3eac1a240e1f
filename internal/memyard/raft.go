package lean

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// commitTime is how long an entry takes to commit.
const commitTime = 2 * time.Millisecond

var errSessionOver = errors.New("the session is over")

// raft applies entries to the ledgers of all members, in order.
type raft struct {
	submitted chan *entry
	term      uint64

	mu       sync.Mutex // held while an entry is applied
	index    uint64
	Ingested [16]int // results of all ingested jobs, by ledger.Ingested
}

// entry is a submitted entry. done is closed once commit or err is set.
type entry struct {
	scheduler.Proposal
	done   chan struct{}
	commit scheduler.Commit
	err    error
}

// run commits what the leader submits until ctx ends.
func (r *raft) run(ctx context.Context, leader *member) {
	for {
		select {
		case <-ctx.Done():
			for { // nobody submits any more once the tenure has ended
				select {
				case e := <-r.submitted:
					e.err = errSessionOver
					close(e.done)
				default:
					return
				}
			}
		case e := <-r.submitted:
			time.Sleep(commitTime)
			r.apply(leader, e)
		}
	}
}

// apply applies an entry to the leader's ledger, answers, and applies it to the others.
func (r *raft) apply(leader *member, e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.index++
	at := ledger.Stamp{Index: r.index, Term: r.term, At: e.At, Epoch: e.Epoch}
	e.commit = scheduler.Commit{Index: r.index, Results: leader.apply(at, e.Commands)}
	for _, result := range e.commit.Results {
		for _, ingested := range result.Ingested {
			r.Ingested[ingested]++
		}
	}
	close(e.done)
	for _, m := range leader.yard.members {
		if m != leader {
			m.apply(at, e.Commands)
		}
	}
}

func (m *member) apply(at ledger.Stamp, commands []ledger.Command) []ledger.Result {
	m.mu.Lock()
	results := m.ledger.Apply(at, commands)
	authority := m.ledger.Authority()
	m.mu.Unlock()
	m.authority.set(authority)
	return results
}

// Submit implements scheduler.Ledger.
func (m *member) Submit(p scheduler.Proposal) (func(context.Context) (scheduler.Commit, error), error) {
	e := &entry{Proposal: p, done: make(chan struct{})}
	m.yard.raft.submitted <- e
	return func(ctx context.Context) (scheduler.Commit, error) {
		select {
		case <-e.done:
			return e.commit, e.err
		case <-ctx.Done():
			return scheduler.Commit{}, ctx.Err()
		}
	}, nil
}

// View implements scheduler.Ledger.
func (m *member) View(fn func(*ledger.Ledger)) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	fn(m.ledger)
}

// Copy implements scheduler.Ledger.
func (m *member) Copy() *ledger.Ledger {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ledger.Copy()
}

// authorityWatch holds the current authority and signals changes.
type authorityWatch struct {
	mu    sync.Mutex
	owner string
	epoch uint64
	next  chan struct{}
}

func (w *authorityWatch) set(a ledger.Authority) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a.Epoch != w.epoch {
		w.owner, w.epoch = a.Owner, a.Epoch
		close(w.next)
		w.next = make(chan struct{})
	}
}
