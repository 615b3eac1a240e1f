package series

import (
	"encoding/binary"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// What is counted.
const (
	Accepted  = iota // jobs that the ledger added
	Started          // dispatches that were placed
	Completed        // jobs
	Retried          // attempts that failed, and after which the job runs again
	Failed           // jobs, for good
	Cancelled        // jobs
	Expired          // jobs
	Returned         // dispatches that ended and do not count as attempts
	kinds
)

// Kinds is the number of counts.
const Kinds = kinds

// Counts has what was counted, by its constant.
type Counts [kinds]uint64

// slot is what happened in a time.
type slot struct {
	counts    [kinds]uint32
	wait, run histogram
}

// kindOf returns what a transition is counted as.
func kindOf(t *ledger.Transition) int {
	switch t.After {
	case job.Active:
		return Started
	case job.Completed:
		return Completed
	case job.Failed:
		return Failed
	case job.Cancelled:
		return Cancelled
	case job.Expired:
		return Expired
	}
	switch {
	case t.Before != job.Active:
		return Accepted
	case t.GivenBack:
		return Returned
	}
	return Retried
}

// add counts a transition at a time. Jobs whose record was rejected are accepted and fail at once.
func (s *slot) add(t *ledger.Transition, kind int, now int64) {
	s.counts[kind]++
	switch {
	case kind == Started && t.Attempt == 1 && !t.Redelivered:
		s.wait.add(now - t.Due)
	case t.Started != 0 && kind != Returned:
		s.run.add(now - t.Started)
	case t.Before == job.New && kind != Accepted:
		s.counts[Accepted]++
	}
}

// addAll adds the counts of other.
func (s *slot) addAll(other *slot) {
	for kind, count := range other.counts {
		s.counts[kind] += count
	}
	s.wait.addAll(&other.wait)
	s.run.addAll(&other.run)
}

func (s *slot) reset() {
	s.counts = [kinds]uint32{}
	s.wait.reset()
	s.run.reset()
}

func (s *slot) empty() bool { return s.counts == [kinds]uint32{} }

// noHistograms in the place of a shift means that the slot has only counts.
const noHistograms = 0xff

// append appends the slot: which counts it has, the counts, and the histograms with a shift.
func (s *slot) append(b []byte, shift int) []byte {
	at := len(b)
	b = append(b, 0)
	for kind, count := range s.counts {
		if count > 0 {
			b[at] |= 1 << kind
			b = binary.AppendUvarint(b, uint64(count))
		}
	}
	if s.wait.high == 0 && s.run.high == 0 {
		shift = noHistograms
	}
	if b = append(b, byte(shift)); shift == noHistograms {
		return b
	}
	return s.run.append(s.wait.append(b, shift), shift)
}

// maxOccupied is how many cells a histogram of all queues may occupy once its slot has ended.
const maxOccupied = 128

// encode returns the slot of all queues, nil if nothing happened.
func (s *slot) encode() []byte {
	if s.empty() {
		return nil
	}
	shift := 0
	for shift < maxShift && max(s.wait.occupied(shift), s.run.occupied(shift)) > maxOccupied {
		shift++
	}
	return s.append(nil, shift)
}

// read reads a slot into an empty one.
func (s *slot) read(r *reader) {
	readSlot(r, func(kind int, count uint64) { s.counts[kind] = uint32(count) },
		func(cell int, count uint64) { s.wait.addTo(cell, uint32(count)) },
		func(cell int, count uint64) { s.run.addTo(cell, uint32(count)) })
}

// readSlot reads a slot.
func readSlot(r *reader, count func(kind int, n uint64), wait, run func(cell int, n uint64)) {
	mask := r.byte()
	for kind := range kinds {
		if mask>>kind&1 == 1 {
			count(kind, r.uvarint())
		}
	}
	switch shift := r.byte(); {
	case shift == noHistograms:
	case shift > maxShift:
		r.fail()
	default:
		readHistogram(r, int(shift), wait)
		readHistogram(r, int(shift), run)
	}
}

// period adds up slots.
type period struct {
	counts    Counts
	wait, run sums
}

// read adds an encoded slot.
func (p *period) read(r *reader) {
	readSlot(r, func(kind int, n uint64) { p.counts[kind] += n },
		func(cell int, n uint64) { p.wait[cell] += n }, func(cell int, n uint64) { p.run[cell] += n })
}

// add adds a slot that has not ended.
func (p *period) add(s *slot) {
	for kind, count := range s.counts {
		p.counts[kind] += uint64(count)
	}
	for cell := s.wait.low; cell < s.wait.high; cell++ {
		p.wait[cell] += uint64(s.wait.counts[cell])
	}
	for cell := s.run.low; cell < s.run.high; cell++ {
		p.run[cell] += uint64(s.run.counts[cell])
	}
}

// stats returns the counts and quantiles.
func (p *period) stats() Stats { return Stats{p.counts, p.wait.quantiles(), p.run.quantiles()} }

// Stats are of a period.
type Stats struct {
	Counts Counts
	Wait   Quantiles // from when a job was due until its first attempt started
	Run    Quantiles // of dispatches, from their start until they ended
}
