package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

var errDeposed = errors.New("leadership lost")

// raft simulates Raft: one log, to which the leader appends while it reaches a
// majority. A replaced leader may not learn of it for a while. A prefix of its
// proposals in flight is committed, and the rest is lost.
type raft struct {
	sim      *simulation
	term     uint64
	leader   *process // nil: none
	log      []logEntry
	electing bool // an election is scheduled
}

// logEntry is a committed entry.
type logEntry struct {
	stamp    ledger.Stamp
	commands []ledger.Command
}

// proposal is an entry that a leader has submitted. done is closed when commit or err
// is set.
type proposal struct {
	scheduler.Proposal
	number int
	done   chan struct{}
	commit scheduler.Commit
	err    error
}

func newRaft(sim *simulation) *raft { return &raft{sim: sim} }

// Submit implements scheduler.Ledger. The entries of one leader are committed in the
// order of submission.
func (proc *process) Submit(p scheduler.Proposal) (func(context.Context) (scheduler.Commit, error), error) {
	sim := proc.sim
	proc.mu.Lock()
	if proc.term == 0 || !proc.up {
		proc.mu.Unlock()
		return nil, errDeposed
	}
	proc.proposals++
	e := &proposal{Proposal: p, number: proc.proposals, done: make(chan struct{})}
	proc.inFlight = append(proc.inFlight, e)
	term, key := proc.term, fmt.Sprintf("commit %s %d", proc.id, e.number)
	at := time.Now().Add(sim.delay(key, 4*time.Millisecond, 900*time.Millisecond))
	if at.Before(proc.lastCommitAt) {
		at = proc.lastCommitAt.Add(time.Microsecond)
	}
	proc.lastCommitAt = at
	proc.mu.Unlock()
	sim.schedule(at, key, func() { sim.raft.commit(proc, term, e) })
	return func(ctx context.Context) (scheduler.Commit, error) {
		select {
		case <-e.done:
			return e.commit, e.err
		case <-ctx.Done():
			return scheduler.Commit{}, ctx.Err()
		}
	}, nil
}

// commit commits a proposal if its leader reaches a majority; otherwise it tries again
// later, until the leadership ends.
func (r *raft) commit(proc *process, term uint64, e *proposal) {
	if !proc.up || proc.term != term {
		return
	}
	if r.leader != proc || !r.hasMajority(proc) || len(proc.inFlight) == 0 || proc.inFlight[0] != e {
		r.sim.after(20*time.Millisecond, fmt.Sprintf("commit %s %d", proc.id, e.number), func() { r.commit(proc, term, e) })
		return
	}
	proc.inFlight = proc.inFlight[1:]
	r.add(term, e)
	e.commit = scheduler.Commit{Index: uint64(len(r.log)), Results: proc.catchUp(len(r.log))}
	close(e.done)
	r.replicate(proc)
}

// add appends a proposal to the log.
func (r *raft) add(term uint64, e *proposal) {
	at := ledger.Stamp{Index: uint64(len(r.log)) + 1, Term: term, At: e.At, Epoch: e.Epoch}
	r.log = append(r.log, logEntry{at, e.Commands})
	r.sim.report.Entries++
}

// replicate schedules that the other nodes apply the committed entries.
func (r *raft) replicate(from *process) {
	to := len(r.log)
	for _, n := range r.sim.nodes {
		proc := n.process
		if proc == from || !proc.up || !r.sim.net.connected(from.node, n) || !r.sim.net.canWrite(n.name) {
			continue
		}
		key := fmt.Sprintf("apply %s %d", proc.id, to)
		r.sim.after(r.sim.delay(key, 8*time.Millisecond, 2*time.Second), key, func() {
			if proc.up && proc.applied < to {
				proc.catchUp(to)
			}
		})
	}
}

// hasMajority reports whether a process reaches a majority of disks that can be
// written, with its own.
func (r *raft) hasMajority(proc *process) bool {
	n := 0
	if !r.sim.net.canWrite(proc.name) {
		return false
	}
	for _, other := range r.sim.nodes {
		if other == proc.node || other.process.up && r.sim.net.connected(proc.node, other) && r.sim.net.canWrite(other.name) {
			n++
		}
	}
	return n > members/2
}

// ensureLeader schedules an election if no leader reaches a majority. Call it whenever
// that may have changed.
func (r *raft) ensureLeader() {
	if r.electing || r.leader != nil && r.leader.up && r.hasMajority(r.leader) {
		if r.leader != nil {
			r.replicate(r.leader)
		}
		return
	}
	r.electing = true
	r.sim.after(r.sim.duration("election", 400*time.Millisecond, 1600*time.Millisecond), "election", func() {
		r.electing = false
		if r.leader == nil || !r.leader.up || !r.hasMajority(r.leader) {
			r.elect(nil)
		}
	})
}

// elect makes one of the processes that reach a majority the leader, but not except,
// which may be nil.
func (r *raft) elect(except *process) {
	var able []*process
	for _, n := range r.sim.nodes {
		if n.process.up && n.process != except && r.hasMajority(n.process) {
			able = append(able, n.process)
		}
	}
	if len(able) == 0 {
		r.ensureLeader()
		return
	}
	next, old := able[r.sim.intn("elected", len(able))], r.leader
	if old != nil {
		r.depose(old)
	}
	r.term++
	r.leader = next
	r.sim.report.Tenures++
	r.sim.trace("%s leads term %d", next.id, r.term)
	next.stepDown() // it may not have learned that its last leadership ended
	next.catchUp(len(r.log))
	next.startTenure(r.term)
	r.replicate(next)
}

// resign ends the leadership of a process whose tenure has failed.
func (r *raft) resign(proc *process, term uint64) {
	if r.leader == proc && r.term == term {
		r.depose(proc)
		proc.stepDown()
		r.ensureLeader()
	}
}

// depose ends a leadership. Some of the leader's proposals in flight are committed,
// and it may learn of its end late, the later if it reaches no majority.
func (r *raft) depose(old *process) {
	r.leader = nil
	committed := 0
	if n := len(old.inFlight); n > 0 {
		committed = r.sim.intn("kept", n+1)
	}
	for _, e := range old.inFlight[:committed] {
		r.add(old.term, e)
	}
	if !old.up {
		return
	}
	unaware := time.Duration(0)
	if !r.hasMajority(old) || r.sim.minorFaultsActive() && r.sim.chance("unaware", 300) {
		unaware = r.sim.duration("unaware for", 10*time.Millisecond, 11*time.Second)
	}
	term := old.term
	r.sim.trace("%s is deposed, %d of %d entries committed, learns of it in %s", old.id, committed, len(old.inFlight), unaware)
	r.sim.after(unaware, "deposed "+old.id, func() {
		if old.up && old.term == term {
			old.stepDown()
		}
	})
}
