package backup

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"yardmaster/job"
	"yardmaster/ledger"
)

// Plan is a file that was found good, and what of its streams a restore brings
// back.
type Plan struct {
	Manifest
	Keep []Stream `json:"keep"`
}

// Kept finds what is kept of a stream; nil if there is no such stream.
func (p *Plan) Kept(stream string) *Stream {
	for i := range p.Keep {
		if p.Keep[i].Stream == stream {
			return &p.Keep[i]
		}
	}
	return nil
}

// lanePrefix begins the names of the lanes' streams. This package reads copies
// of streams, wherever they come from, and knows of no yard.
const lanePrefix = "YARD_JOBS_"

// Verify reads a whole file and refuses one whose bytes are not those that were
// written, whose ledger cannot be read or has another hash, or whose streams
// do not hold what the ledger points to. The error wraps [ErrDamaged] unless
// it is r's own.
func Verify(r io.Reader) (*Plan, error) {
	v := &verifier{streams: map[string]*stream{}}
	m, err := each(r, v.part)
	if err != nil {
		return nil, err
	}
	plan := &Plan{Manifest: *m}
	if err := v.compare(plan); err != nil {
		return nil, err
	}
	return plan, nil
}

type verifier struct {
	ledger  *ledger.Ledger
	unended map[job.Position]job.ID // in the ledger: whose records are needed
	streams map[string]*stream      // by part
}

// stream is what was seen of one.
type stream struct {
	broken error // of a part that may not count
	state  streamState
	seen   uint64 // messages
	dense  bool   // without gaps
	first  uint64
	last   uint64
	keep   []mark           // by message, of those that tell numbers
	bodies map[string]*body // by blob: of a lane, what its records point to; of the blobs, what was found
}

// mark is a message that tells the numbers up to last.
type mark struct {
	seq, first, last uint64
	size             uint64
}

func (v *verifier) part(name string, r io.Reader) error {
	if (name == LedgerPart) != (v.ledger == nil) {
		return damaged("it begins with %s, not with its ledger", name)
	}
	if name == LedgerPart {
		l, err := ledger.Decode(r)
		if err != nil {
			return damaged("its ledger cannot be read: %v", err)
		}
		v.ledger, v.unended = l, map[job.Position]job.ID{}
		l.Unended(func(at job.Position, id job.ID) bool {
			v.unended[at] = id
			return true
		})
		return nil
	}
	s := &stream{dense: true, bodies: map[string]*body{}}
	look := v.looker(name, s)
	v.streams[name] = s
	begin := func(state streamState) error {
		s.state = state
		return nil
	}
	s.broken = scan(r, begin, func(m *message) error {
		if s.seen > 0 && m.Sequence != s.last+1 {
			s.dense = false
		}
		if s.seen++; s.seen == 1 {
			s.first = m.Sequence
		}
		s.last = m.Sequence
		if first, count, ok := numbers(m.data[:m.HeaderSize]); ok {
			size := uint64(len(m.Name)) + uint64(len(m.data)) + 30
			s.keep = append(s.keep, mark{m.Sequence, first, first + max(count, 1) - 1, size})
		}
		look(m)
		return nil
	})
	return nil
}

// numbers reads which numbers a message tells.
func numbers(header []byte) (first, count uint64, ok bool) {
	for line := range bytes.SplitSeq(header, []byte("\r\n")) {
		key, value, found := strings.Cut(string(line), ":")
		if !found {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		switch {
		case err != nil:
		case key == "Yard-First":
			first, ok = n, true
		case key == "Yard-Count":
			count = n
		}
	}
	return first, count, ok
}

func (v *verifier) compare(p *Plan) error {
	if v.ledger == nil {
		return damaged("it holds no ledger")
	}
	hash, err := v.ledger.Hash()
	if err != nil {
		return fmt.Errorf("hash the ledger: %w", err)
	}
	l, m := v.ledger, &p.Manifest
	if hex.EncodeToString(hash[:]) != m.Ledger.SHA256 || l.Index() != m.Index {
		return damaged("its ledger is another one than its manifest says, or this program reads it differently")
	}
	if m.LastEvent != l.LastEvent() || m.LastResult != l.LastResult() || m.LastDead != l.LastDead() || !slices.Equal(Queues(l), m.Queues) {
		return damaged("its manifest counts otherwise than its ledger")
	}
	if id, _ := l.Bringing(); id != "" {
		return damaged("it was made while a restore was under way")
	}
	for i := range m.Streams {
		of := &m.Streams[i]
		s := v.streams[of.Name]
		switch {
		case s == nil:
			return damaged("stream %s is said to be in %q, where none is", of.Stream, of.Name)
		case m.Stream(of.Stream) != of:
			return damaged("it holds stream %s twice", of.Stream)
		case s.broken != nil:
			return damaged("stream %s cannot be read: %v", of.Stream, s.broken)
		}
		if s.state.FirstSeq != of.First || s.state.LastSeq != of.Last || s.seen > of.Messages {
			return damaged("stream %s holds %d messages up to %d, its manifest says %d up to %d", of.Stream, s.seen, s.last, of.Messages, of.Last)
		}
		p.Keep = append(p.Keep, *of)
	}
	if err := v.lanes(m); err != nil {
		return err
	}
	if err := v.bodies(m); err != nil {
		return err
	}
	return v.stories(p)
}

// lanes: each holds all that the ledger may still read of it.
func (v *verifier) lanes(m *Manifest) error {
	lanes, needed := v.ledger.Lanes(), v.ledger.Needed()
	for i, lane := range lanes {
		of := m.Stream(lanePrefix + strconv.Itoa(i))
		if of == nil {
			return damaged("lane %d is missing", i)
		}
		s := v.streams[of.Name]
		switch {
		case of.Identity != lane.Identity:
			return damaged("lane %d is %s, the ledger knows %s", i, of.Identity, lane.Identity)
		case of.Last < lane.Cursor:
			return damaged("lane %d ends at %d, the ledger has folded up to %d", i, of.Last, lane.Cursor)
		case !s.dense || s.seen > 0 && (s.first != of.First || s.last != of.Last) || s.seen == 0 && of.Messages > 0:
			return damaged("lane %d has a gap: %d records from %d to %d", i, s.seen, s.first, s.last)
		case needed[i] > 0 && needed[i] < of.First && (lane.Cursor != needed[i] || lane.Cursor+1 < of.First):
			return damaged("lane %d begins at %d, jobs need it from %d on", i, of.First, needed[i])
		}
	}
	var lost error
	v.ledger.Bodies(func(at job.Position, id job.ID) bool {
		of := m.Stream(lanePrefix + strconv.Itoa(int(at.Lane)))
		if of == nil || at.Seq < of.First || at.Seq > of.Last {
			lost = damaged("the record of job %s, lane %d at %d, is not in it", id, at.Lane, at.Seq)
		}
		return lost == nil
	})
	return lost
}

// stories finds how far each stream that the outbox is told to goes along with
// the ledger, and refuses one that has a hole, or ends before what the ledger
// takes for told.
func (v *verifier) stories(p *Plan) error {
	l := v.ledger
	told := func(last uint64, waiting int) uint64 { return last - uint64(waiting) }
	for _, story := range []struct {
		stream      string
		known, told uint64
		dense       bool // letters are taken out
	}{
		{"YARD_EVENTS", l.LastEvent(), l.ToldEvents(), true},
		{"YARD_RESULTS", l.LastResult(), told(l.LastResult(), len(l.ResultsAfter(0))), true},
		{"YARD_DLQ", l.LastDead(), told(l.LastDead(), len(l.DeadAfter(0))), false},
	} {
		keep := p.Kept(story.stream)
		if keep == nil {
			return damaged("stream %s is missing", story.stream)
		}
		s := v.streams[keep.Name]
		last := uint64(0)
		for i, k := range s.keep {
			if k.last > story.known {
				keep.Last = k.seq - 1
				for _, gone := range s.keep[i:] {
					keep.Messages, keep.Bytes = keep.Messages-1, keep.Bytes-min(gone.size, keep.Bytes)
				}
				break
			}
			if story.dense && last > 0 && k.first != last+1 {
				return damaged("%s has a hole between numbers %d and %d", story.stream, last, k.first)
			}
			last = k.last
		}
		if story.dense && last < story.told && (last > 0 || keep.Last == 0) { // all that was told may have grown old
			return damaged("%s ends at number %d, the ledger has told %d", story.stream, last, story.told)
		}
	}
	return nil
}

// Queues counts a ledger's jobs by queue and state, in the order of names.
func Queues(l *ledger.Ledger) []Queue {
	var all []Queue
	for _, q := range l.Queues() {
		all = append(all, Queue{
			Name: q.Name, Paused: q.Paused, Limit: q.Config.Limit,
			Waiting: q.Counts[job.Waiting], Delayed: q.Counts[job.Delayed], Active: q.Counts[job.Active],
			Completed: q.Counts[job.Completed], Failed: q.Counts[job.Failed],
		})
	}
	return all
}
