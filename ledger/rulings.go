package ledger

import (
	"time"

	"yardmaster/job"
)

// maxRulings is how many rulings are kept; older ones go.
const maxRulings = 65_536

// Ruling is what became of a record with guards.
type Ruling struct {
	Folded     Folded
	Job        job.ID        // what it became, became part of, or is a duplicate of; zero: nothing
	Queue      string        // of Job
	RetryAfter time.Duration // FoldedLimited: until the key is free
	Reason     string        // FoldedRejected, FoldedLater
}

// ruled is a ruling and the record it is about.
type ruled struct {
	at       int64 // when it was made
	place    job.Position
	id       job.ID
	accepted int64
	Ruling
}

// rulings are kept until everybody who waits has surely heard, and no copy of
// a record can come any more. The list only grows at the end and shrinks at
// the front, so copies share it.
type rulings struct {
	list    []ruled
	first   uint64                  // number of the first in the list
	byPlace map[job.Position]uint64 // nil in a copy
	byID    map[job.ID]uint64       // the last about an id; nil in a copy
}

func newRulings() rulings {
	return rulings{byPlace: make(map[job.Position]uint64), byID: make(map[job.ID]uint64)}
}

func (s *rulings) copy() rulings { return rulings{list: s.list} }

func (s *rulings) add(r ruled) {
	n := s.first + uint64(len(s.list))
	s.list = append(s.list, r)
	s.byPlace[r.place], s.byID[r.id] = n, n
}

// ofCopy finds the ruling about another copy of the same record: a node that
// got no answer from one lane stores it in the next, under the same time. A
// producer's own second try has a later one, and is judged anew.
func (s *rulings) ofCopy(j *job.Job) (Ruling, bool) {
	n, ok := s.byID[j.ID]
	if !ok || s.list[n-s.first].accepted != j.Accepted.UnixNano() {
		return Ruling{}, false
	}
	r := s.list[n-s.first].Ruling
	if r.Folded == FoldedWaiting || r.Folded == FoldedDelayed {
		r.Folded = FoldedKnown
	}
	return r, true
}

// trim lets rulings go that are too old or too many, a bounded number at a
// time.
func (s *rulings) trim(before int64) {
	for range maxForgotten {
		if len(s.list) == 0 || len(s.list) <= maxRulings && s.list[0].at >= before {
			return
		}
		r := &s.list[0]
		if s.byPlace[r.place] == s.first {
			delete(s.byPlace, r.place)
		}
		if s.byID[r.id] == s.first {
			delete(s.byID, r.id)
		}
		s.list = s.list[1:]
		s.first++
	}
}

// Ruling tells what became of the record with guards that was folded from a
// place; ok is false if there was none, or if it was too long ago.
func (l *Ledger) Ruling(p job.Position) (r Ruling, ok bool) {
	n, ok := l.rulings.byPlace[p]
	if !ok {
		return Ruling{}, false
	}
	return l.rulings.list[n-l.rulings.first].Ruling, true
}

func (e *encoder) guards(l *Ledger) {
	e.uint(uint64(l.guards.byTime.Len()))
	l.guards.byTime.Scan(func(h *heldKey) bool {
		e.raw(h.key[:])
		e.id(h.job)
		e.int(h.until)
		e.bool(h.rate)
		return e.err == nil
	})
	e.uint(uint64(len(l.rulings.list)))
	for i := range l.rulings.list {
		r := &l.rulings.list[i]
		e.int(r.at)
		e.uint(uint64(r.place.Lane))
		e.uint(r.place.Seq)
		e.id(r.id)
		e.int(r.accepted)
		e.uint(uint64(r.Folded))
		e.id(r.Job)
		e.name(r.Queue)
		e.int(int64(r.RetryAfter))
		e.text(r.Reason)
	}
}

func (d *decoder) guards(l *Ledger) {
	d.times(func() {
		h := &heldKey{key: job.GuardKey(d.id()), job: d.id(), until: d.int(), rate: d.bool()}
		r := l.jobs.byID[h.job]
		if l.guards.byKey[h.key] != nil || !h.rate && (r == nil || r.flags&guarded == 0) {
			d.fail(errCorrupt)
			return
		}
		l.guards.hold(h)
	})
	d.times(func() {
		r := ruled{
			at: d.int(), place: job.Position{Lane: uint8(d.uint()), Seq: d.uint()}, id: d.id(), accepted: d.int(),
			Ruling: Ruling{
				Folded: Folded(d.uint()), Job: d.id(), Queue: d.name(),
				RetryAfter: time.Duration(d.int()), Reason: d.text(),
			},
		}
		if r.Folded == 0 || r.Folded > FoldedLater {
			d.fail(errCorrupt)
		}
		l.rulings.add(r)
	})
}
