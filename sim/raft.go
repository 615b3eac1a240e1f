package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"yardmaster/ledger"
	"yardmaster/scheduler"
)

var errDeposed = errors.New("leadership is lost")

// raft plays agreement: one log, which a leader adds to while it reaches a
// majority. A leader that was replaced may not know it for a while; what it had
// under way then was committed up to some entry, and the rest is lost.
type raft struct {
	y        *yard
	term     uint64
	leader   *life // nil: none, or its end is noticed
	log      []logged
	electing bool
}

type logged struct {
	at       ledger.Stamp
	commands []ledger.Command
}

// proposal is an entry under way.
type proposal struct {
	scheduler.Proposal
	number int
	done   chan struct{}
	commit scheduler.Commit
	err    error
}

func newRaft(y *yard) *raft { return &raft{y: y} }

// Submit is scheduler.Ledger's: entries of one leader are committed in their
// order.
func (l *life) Submit(p scheduler.Proposal) (func(context.Context) (scheduler.Commit, error), error) {
	y := l.y
	l.mu.Lock()
	if l.term == 0 || !l.up {
		l.mu.Unlock()
		return nil, errDeposed
	}
	l.proposals++
	e := &proposal{Proposal: p, number: l.proposals, done: make(chan struct{})}
	l.underWay = append(l.underWay, e)
	term, key := l.term, fmt.Sprintf("commit %s %d", l.id, e.number)
	at := time.Now().Add(y.delay(key, 4*time.Millisecond, 900*time.Millisecond))
	if at.Before(l.committing) {
		at = l.committing.Add(time.Microsecond)
	}
	l.committing = at
	l.mu.Unlock()
	y.at(at, key, func() { y.raft.commit(l, term, e) })
	return func(ctx context.Context) (scheduler.Commit, error) {
		select {
		case <-e.done:
			return e.commit, e.err
		case <-ctx.Done():
			return scheduler.Commit{}, ctx.Err()
		}
	}, nil
}

// commit carries a proposal to a majority, or tries again later: only the end
// of the leadership ends the try.
func (r *raft) commit(l *life, term uint64, e *proposal) {
	if !l.up || l.term != term {
		return
	}
	if r.leader != l || !r.majority(l) || len(l.underWay) == 0 || l.underWay[0] != e {
		r.y.after(20*time.Millisecond, fmt.Sprintf("commit %s %d", l.id, e.number), func() { r.commit(l, term, e) })
		return
	}
	l.underWay = l.underWay[1:]
	r.add(term, e)
	e.commit = scheduler.Commit{Index: uint64(len(r.log)), Results: l.catchUp(len(r.log))}
	close(e.done)
	r.spread(l)
}

func (r *raft) add(term uint64, e *proposal) {
	at := ledger.Stamp{Index: uint64(len(r.log)) + 1, Term: term, At: e.At, Epoch: e.Epoch}
	r.log = append(r.log, logged{at, e.Commands})
	r.y.report.Entries++
}

// spread has the others apply what is committed, each in its time.
func (r *raft) spread(from *life) {
	to := len(r.log)
	for _, n := range r.y.nodes {
		l := n.life
		if l == from || !l.up || !r.y.net.both(from.node, n) || !r.y.net.writes(n.name) {
			continue
		}
		key := fmt.Sprintf("apply %s %d", l.id, to)
		r.y.after(r.y.delay(key, 8*time.Millisecond, 2*time.Second), key, func() {
			if l.up && l.applied < to {
				l.catchUp(to)
			}
		})
	}
}

func (r *raft) majority(l *life) bool {
	n := 0
	if !r.y.net.writes(l.name) {
		return false
	}
	for _, other := range r.y.nodes {
		if other == l.node || other.life.up && r.y.net.both(l.node, other) && r.y.net.writes(other.name) {
			n++
		}
	}
	return n > members/2
}

// look has a leader elected if there is none that can lead. It is called
// whenever that may have changed.
func (r *raft) look() {
	if r.electing || r.leader != nil && r.leader.up && r.majority(r.leader) {
		if r.leader != nil {
			r.spread(r.leader)
		}
		return
	}
	r.electing = true
	r.y.after(r.y.between("election", 400*time.Millisecond, 1600*time.Millisecond), "election", func() {
		r.electing = false
		if r.leader == nil || !r.leader.up || !r.majority(r.leader) {
			r.elect(nil)
		}
	})
}

// elect makes one of those the leader that reach a majority, but not the given
// one if there is another.
func (r *raft) elect(not *life) {
	var able []*life
	for _, n := range r.y.nodes {
		if n.life.up && n.life != not && r.majority(n.life) {
			able = append(able, n.life)
		}
	}
	if len(able) == 0 {
		r.look()
		return
	}
	next, old := able[r.y.pick("elected", len(able))], r.leader
	if old != nil {
		r.depose(old)
	}
	r.term++
	r.leader = next
	r.y.report.Tenures++
	r.y.tell("%s leads term %d", next.id, r.term)
	next.stepDown() // it may not have heard of an end of its own
	next.catchUp(len(r.log))
	next.lead(r.term)
	r.spread(next)
}

// resign ends the leadership of one whose tenure has failed.
func (r *raft) resign(l *life, term uint64) {
	if r.leader == l && r.term == term {
		r.depose(l)
		l.stepDown()
		r.look()
	}
}

// depose replaces a leader: some of what it had under way is in the log, and
// how soon it hears of its end depends on what it hears at all.
func (r *raft) depose(old *life) {
	r.leader = nil
	kept := 0
	if n := len(old.underWay); n > 0 {
		kept = r.y.pick("kept", n+1)
	}
	for _, e := range old.underWay[:kept] {
		r.add(old.term, e)
	}
	if !old.up {
		return
	}
	hears := time.Duration(0)
	if !r.majority(old) || r.y.mishaps() && r.y.chance("unaware", 300) {
		hears = r.y.between("unaware for", 10*time.Millisecond, 11*time.Second)
	}
	term := old.term
	r.y.tell("%s is deposed, %d of %d entries kept, hears of it in %s", old.id, kept, len(old.underWay), hears)
	r.y.after(hears, "deposed "+old.id, func() {
		if old.up && old.term == term {
			old.stepDown()
		}
	})
}
