package soak

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"

	"github.com/yardmaster-dev/yardmaster/job"
)

// jobState is a set of facts about a job.
type jobState uint16

const (
	stateAccepted  jobState = 1 << iota // acknowledged to its producer
	stateMerged                         // answered as another job, which held its unique key
	stateRepeated                       // sent more than once, because a call was not answered
	stateBegun                          // a handler has begun
	stateDone                           // a handler has returned success
	stateCompleted                      // history: a dispatch was delivered
	stateDead                           // there is a dead letter
)

// created reports whether the job exists: it was acknowledged, and not as another one. A
// call that its producer has given up may still create a job whose repetition was
// answered as another.
func (s jobState) created() bool {
	return s&stateAccepted != 0 && (s&stateMerged == 0 || s&stateBegun != 0)
}

// createdLate reports whether a job was created after it was answered as another one.
func (s jobState) createdLate() bool { return s&stateMerged != 0 && s&stateBegun != 0 }

// ended reports whether the job has ended according to the streams.
func (s jobState) ended() bool { return s&(stateCompleted|stateDead) != 0 }

// jobEntry is what is known of one job.
type jobEntry struct {
	fence int64  // of the latest run
	ends  uint32 // dispatches whose end history has, as bits; dispatches from 32 on share the last
	state jobState
}

// slabJobs is the number of entries that are allocated together.
const slabJobs = 1 << 16

// jobTable accounts for all jobs of a load, by number. Its methods may be called
// concurrently. Facts that contradict each other are flaws.
type jobTable struct {
	nonce     [8]byte          // the first half of all ids
	witnessed func(n int) bool // reports whether the handlers of job n record their runs here; nil: all do

	mu    sync.Mutex
	slabs [][]jobEntry
	jobs  int // that were submitted
	sums  jobSums
	flaws flawList
}

// jobSums are numbers of jobs, except where stated otherwise.
type jobSums struct {
	Submitted int `json:"submitted"`
	Accepted  int `json:"accepted"`
	Merged    int `json:"merged"` // accepted as another job with the same unique key
	Late      int `json:"late"`   // of Merged, those that an earlier call created nevertheless
	Completed int `json:"completed"`
	Dead      int `json:"dead"`
	Open      int `json:"open"`   // accepted, created and not ended
	Runs      int `json:"runs"`   // of handlers, not jobs
	Reruns    int `json:"reruns"` // runs beyond the first of a job
}

// newJobTable returns a table for ids that begin with a nonce.
func newJobTable(nonce uint64) *jobTable {
	t := &jobTable{}
	binary.BigEndian.PutUint64(t.nonce[:], nonce)
	t.nonce[6] = t.nonce[6]&0x0f | 0x80 // version 8: the content is ours
	return t
}

// id returns the id of job n.
func (t *jobTable) id(n int) (id job.ID) {
	copy(id[:], t.nonce[:])
	binary.BigEndian.PutUint64(id[8:], uint64(n)|1<<63) // the variant's bits are 10
	return id
}

// number returns the number of the job with an id. ok is false if it is not of this
// table.
func (t *jobTable) number(id job.ID) (n int, ok bool) {
	if [8]byte(id[:8]) != t.nonce {
		return 0, false
	}
	return int(binary.BigEndian.Uint64(id[8:]) &^ (1 << 63)), true
}

// change calls f with the entry of the job with an id, and updates the sums. It does
// nothing for an id of another table.
func (t *jobTable) change(id job.ID, f func(n int, e *jobEntry)) {
	n, ours := t.number(id)
	if !ours {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n >= t.jobs {
		t.flaws.add("job %s was never submitted", id)
		return
	}
	e := &t.slabs[n/slabJobs][n%slabJobs]
	before := e.state
	f(n, e)
	t.count(before, e.state)
}

// count updates the sums after a change of a job's state.
func (t *jobTable) count(before, after jobState) {
	gained := after &^ before
	t.sums.Accepted += bits.OnesCount16(uint16(gained & stateAccepted))
	t.sums.Merged += bits.OnesCount16(uint16(gained & stateMerged))
	t.sums.Completed += bits.OnesCount16(uint16(gained & stateCompleted))
	t.sums.Dead += bits.OnesCount16(uint16(gained & stateDead))
	t.sums.Open += change(after.created() && !after.ended(), before.created() && !before.ended())
	t.sums.Late += change(after.createdLate(), before.createdLate())
}

// change returns 1 if a fact has become true, -1 if it has become false, else 0.
func change(after, before bool) int {
	switch {
	case after && !before:
		return 1
	case before && !after:
		return -1
	}
	return 0
}

// submit adds the next job and returns its number.
func (t *jobTable) submit() (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n = t.jobs
	if n%slabJobs == 0 {
		t.slabs = append(t.slabs, make([]jobEntry, slabJobs))
	}
	t.jobs++
	t.sums.Submitted++
	return n
}

// accept records that job n was acknowledged as the job named id, "" if the answer named
// none. repeated reports whether an earlier call was not answered.
func (t *jobTable) accept(n int, id string, repeated bool) {
	own := t.id(n)
	t.change(own, func(_ int, e *jobEntry) {
		e.state |= stateAccepted
		if repeated {
			e.state |= stateRepeated
		}
		if id == "" || id == own.String() {
			return
		}
		e.state |= stateMerged
		if e.state&(stateBegun|stateCompleted|stateDead) != 0 && !repeated {
			t.flaws.add("job %s was answered as %s, and exists", own, id)
		}
	})
}

// begin records that a handler runs a job, in a dispatch with this fence.
func (t *jobTable) begin(id job.ID, fence int64) {
	t.change(id, func(n int, e *jobEntry) {
		t.sums.Runs++
		if e.state&stateBegun != 0 {
			t.sums.Reruns++
			if fence == e.fence {
				t.flaws.add("job %s ran twice in the dispatch with fence %d", id, fence)
			}
		}
		if e.state&(stateMerged|stateRepeated) == stateMerged {
			t.flaws.add("job %s ran, although another job was created in its place", id)
		}
		e.state |= stateBegun
		e.fence = max(e.fence, fence)
	})
}

// done records that a handler has returned success.
func (t *jobTable) done(id job.ID) {
	t.change(id, func(_ int, e *jobEntry) { e.state |= stateDone })
}

// dispatchEnded records that history has the end of a job's dispatch.
func (t *jobTable) dispatchEnded(id job.ID, dispatch uint32, delivered bool) {
	t.change(id, func(n int, e *jobEntry) {
		bit := uint32(1) << min(dispatch, 31)
		if e.ends&bit != 0 && dispatch < 31 {
			t.flaws.add("dispatch %s has two ends in history", job.RequestID(id, dispatch))
		}
		e.ends |= bit
		if !delivered {
			return
		}
		switch {
		case e.state&stateCompleted != 0:
			t.flaws.add("job %s was completed twice", id)
		case e.state&stateDead != 0:
			t.flaws.add("job %s was completed after its dead letter", id)
		case e.state&stateDone == 0 && (t.witnessed == nil || t.witnessed(n)):
			t.flaws.add("job %s is completed, and no handler has returned success", id)
		}
		e.state |= stateCompleted
	})
}

// died records a dead letter of a job. expected reports whether the job was to fail.
func (t *jobTable) died(id job.ID, reason string, expected func(n int) bool) {
	t.change(id, func(n int, e *jobEntry) {
		switch {
		case e.state&stateDead != 0:
			t.flaws.add("job %s has two dead letters", id)
		case e.state&stateCompleted != 0:
			t.flaws.add("job %s has a dead letter, and is completed", id)
		case !expected(n):
			t.flaws.add("job %s was not to fail, and has a dead letter: %s", id, reason)
		}
		e.state |= stateDead
	})
}

// totals returns the sums.
func (t *jobTable) totals() jobSums {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sums
}

// open calls visit for each job that is accepted, created and not ended.
func (t *jobTable) open(visit func(n int, state jobState)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for n := range t.jobs {
		if e := &t.slabs[n/slabJobs][n%slabJobs]; e.state.created() && !e.state.ended() {
			visit(n, e.state)
		}
	}
}

// flaw records a contradiction that another part has found.
func (t *jobTable) flaw(format string, v ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flaws.add(format, v...)
}

// allFlaws returns the flaws so far.
func (t *jobTable) allFlaws() flawList {
	t.mu.Lock()
	defer t.mu.Unlock()
	return flawList{append([]string(nil), t.flaws.first...), t.flaws.count}
}

// maxFlaws is the number of flaws that a list keeps; further ones are counted.
const maxFlaws = 20

// flawList is a list of flaws, of which the first are kept as text.
type flawList struct {
	first []string
	count int
}

func (l *flawList) add(format string, v ...any) {
	if l.count++; l.count <= maxFlaws {
		l.first = append(l.first, fmt.Sprintf(format, v...))
	}
}

// stateOf returns what is known of job n, which must have been submitted.
func (t *jobTable) stateOf(n int) jobState {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.slabs[n/slabJobs][n%slabJobs].state
}
