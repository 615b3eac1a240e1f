package series

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// The slots of a series: of ten seconds for an hour, of a minute for 24 hours.
const (
	fineStep    = int64(10 * time.Second)
	fineSlots   = 360
	minuteStep  = int64(time.Minute)
	minuteSlots = 1440
	Retention   = 24 * time.Hour
)

// recentSlots is how many fine slots the rates of queues are of: those of the last minute.
const recentSlots = 6

// Series has the counts of 24 hours. It takes at most about 16 MiB: 1,440 minutes of 8 KiB for
// queues, 1 KiB for all of them together and 0.3 KiB for errors, and 1 MiB for the minute that has
// not ended. If a minute has more than that, its histograms become coarser, and those of some queues
// are dropped; counts of queues are not.
//
// It is not safe for concurrent use; long reads use a [Series.Clone].
type Series struct {
	index uint64 // of the last entry
	now   int64  // the ledger's time then, in Unix nanoseconds
	since int64  // what happened before is not known

	fine    ring
	open    slot // the fine slot that has not ended
	minutes ring
	minute  slot // the minute that has not ended, without open
	queues  queues
	errors  failures

	happenings []Happening
}

// Entry is what an entry of the log did.
type Entry struct {
	Index       uint64
	At          time.Time // the ledger's time; never before that of the entry before
	Transitions []ledger.Transition
	Events      []ledger.Event
}

// New returns a series without entries.
func New() *Series {
	return &Series{
		fine: ring{slots: make([][]byte, fineSlots)}, minutes: ring{slots: make([][]byte, minuteSlots)},
		queues: newQueues(), errors: newFailures(),
	}
}

// Index returns the index of the last entry.
func (s *Series) Index() uint64 { return s.index }

// Apply adds an entry. It ignores one that was added before.
func (s *Series) Apply(e *Entry) {
	if e.Index <= s.index {
		return
	}
	at := e.At.UnixNano()
	if s.since == 0 {
		s.StartAt(0, e.At)
	}
	s.index = e.Index
	s.advance(max(at, s.now))
	for i := range e.Transitions {
		s.count(&e.Transitions[i])
	}
	for i := range e.Events {
		s.addHappening(&e.Events[i])
	}
}

// StartAt makes an empty series continue after the entry with an index, at the ledger's time then:
// nothing is known of what happened before.
func (s *Series) StartAt(index uint64, at time.Time) {
	s.index, s.now, s.since = index, at.UnixNano(), at.UnixNano()
	s.fine.open, s.minutes.open = s.now/fineStep, s.now/minuteStep
}

// count counts a transition.
func (s *Series) count(t *ledger.Transition) {
	kind := kindOf(t)
	q := s.queues.get(t.Queue, s.minutes.open)
	s.open.add(t, kind, s.now)
	q.slot.add(t, kind, s.now)
	if kind == Failed || kind == Retried {
		s.errors.add(q.number, t.Error)
	}
}

// advance sets the time, and ends the slots that are over.
func (s *Series) advance(now int64) {
	s.now = now
	next := now / fineStep
	if next == s.fine.open {
		return
	}
	s.queues.endFine(s.fine.open, next)
	s.minute.addAll(&s.open)
	s.fine.end(next, s.open.encode())
	s.open.reset()
	if minute := now / minuteStep; minute != s.minutes.open {
		s.minutes.end(minute, s.encodeMinute())
		s.minute.reset()
		s.queues.endMinute(minute)
		s.errors.endMinute()
		s.dropHappenings()
	}
}

// encodeMinute returns the minute that ends: the slot of all queues, those of queues, and errors. It
// returns nil if nothing happened.
func (s *Series) encodeMinute() []byte {
	b := s.minute.encode()
	if b == nil {
		return nil
	}
	return s.errors.append(s.queues.append(b))
}

// ring has the last slots that have ended, by number: the time at which a slot begins, divided by
// the step. The slots from open-len(slots) to open-1 are in it, nil if nothing happened.
type ring struct {
	slots [][]byte
	open  int64
}

// end ends the open slot. Nothing happened in those between it and next.
func (r *ring) end(next int64, encoded []byte) {
	n := int64(len(r.slots))
	r.slots[r.open%n] = encoded
	for empty := max(r.open+1, next-n); empty < next; empty++ {
		r.slots[empty%n] = nil
	}
	r.open = next
}

// at returns a slot that has ended.
func (r *ring) at(number int64) []byte { return r.slots[number%int64(len(r.slots))] }
