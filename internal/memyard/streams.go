package lean

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
	"github.com/yardmaster-dev/yardmaster/scheduler/outbox"
)

// ErrFull is returned for a record that does not fit into its lane.
var ErrFull = errors.New("the lane is full")

// recordOverhead is the size of a record in addition to its body, in bytes.
const recordOverhead = 100

// deadLetterAge is how long dead letters are kept.
const deadLetterAge = 7 * 24 * time.Hour

// Streams are the yard's streams.
type Streams struct {
	mu        sync.Mutex // guards all fields
	lanes     [Size]stream
	relocated stream
	bodies    map[string]largeBody
	history   [3]historyStream
	letters   []deadLetter

	Relocated uint64 // records copied to the stream of relocated records
	Purged    uint64 // records purged
}

type largeBody struct {
	scheduler.StoredBody
	text []byte
}

type deadLetter struct {
	at    time.Time
	owner job.ID
}

// stream is a lane or the stream of relocated records.
type stream struct {
	identity string
	first    uint64 // sequence of records[0]
	records  []job.Record
	bytes    uint64
	max      uint64
}

// historyStream is a stream of the outbox: its last sequence and item.
type historyStream struct {
	seq, number uint64
	busyUntil   time.Time // when the last append that was sent is stored
}

func newStreams(laneBytes uint64) *Streams {
	s := &Streams{bodies: map[string]largeBody{}, relocated: stream{first: 1, max: laneBytes}}
	for i := range s.lanes {
		s.lanes[i] = stream{first: 1, max: laneBytes}
	}
	return s
}

func (s *Streams) stream(number uint8) *stream {
	if number == job.RelocatedLane {
		return &s.relocated
	}
	return &s.lanes[number]
}

func recordSize(r *job.Record) uint64 { return recordOverhead + uint64(len(r.Body)) }

// end returns the last sequence.
func (l *stream) end() uint64 { return l.first + uint64(len(l.records)) - 1 }

// add appends a record and sets its sequence.
func (l *stream) add(r *job.Record) error {
	if l.bytes+recordSize(r) > l.max {
		return ErrFull
	}
	r.Seq, r.Last = l.end()+1, true
	l.records = append(l.records, *r)
	l.bytes += recordSize(r)
	return nil
}

// store appends records to the lane that the first one names, and sets their positions
// and times.
func (s *Streams) store(records []job.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	lane := &s.lanes[records[0].Lane]
	now := time.Now()
	for i := range records {
		records[i].Lane, records[i].Stored = records[0].Lane, now
		if err := lane.add(&records[i]); err != nil {
			return fmt.Errorf("lane %d with %d of %d bytes: %w", records[0].Lane, lane.bytes, lane.max, err)
		}
	}
	return nil
}

// StoreLarge stores a body outside of its record, and returns the record's body.
func (s *Streams) StoreLarge(owner job.ID, body []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	name := fmt.Sprintf("%s.%d", owner, now.UnixNano())
	s.bodies[name] = largeBody{scheduler.StoredBody{Name: name, Owner: owner, Stored: now}, body}
	reference, _ := json.Marshal(job.Blob{Name: name, Chunks: 1, Size: int64(len(body)), SHA256: strings.Repeat("0", 64)})
	return fmt.Appendf(nil, `{"blob":%s,%s`, reference, body[1:])
}

// Usage returns how many records and large bodies are stored.
func (s *Streams) Usage() (records, bodies int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.lanes {
		records += len(s.lanes[i].records)
	}
	return records + len(s.relocated.records), len(s.bodies)
}

// laneEnds returns the last sequences of the lanes.
func (s *Streams) laneEnds() (ends [Size]uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.lanes {
		ends[i] = s.lanes[i].end()
	}
	return ends
}

// load returns the record at a position.
func (s *Streams) load(pos job.Position, id job.ID) (job.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.stream(pos.Lane)
	if pos.Seq < l.first || pos.Seq > l.end() {
		return job.Record{}, scheduler.ErrRecordGone
	}
	r := l.records[pos.Seq-l.first]
	if pos.Relocated() && r.Owner != id {
		return job.Record{}, fmt.Errorf("the relocated record %d is of job %s, not %s", pos.Seq, r.Owner, id)
	}
	return r, nil
}

// body returns the body of a record, which may refer to a large one.
func (s *Streams) body(r *job.Record) ([]byte, error) {
	if !bytes.HasPrefix(r.Body, []byte(`{"blob"`)) {
		return r.Body, nil
	}
	var reference struct{ Blob job.Blob }
	if err := json.Unmarshal(r.Body, &reference); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	body, ok := s.bodies[reference.Blob.Name]
	if !ok {
		return nil, scheduler.ErrRecordGone
	}
	return body.text, nil
}

// lanesView implements scheduler.Lanes.
type lanesView struct{ *member }

// Ensure implements scheduler.Lanes.
func (v lanesView) Ensure(_ context.Context, identities []string, _ uint8) error {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, identity := range identities {
		s.lanes[i].identity = identity
	}
	return nil
}

// Info implements scheduler.Lanes.
func (v lanesView) Info(_ context.Context, number uint8) (scheduler.LaneInfo, error) {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.stream(number)
	return scheduler.LaneInfo{Identity: l.identity, First: l.first, Last: l.end(), Bytes: l.bytes, MaxBytes: l.max}, nil
}

// Read implements scheduler.Lanes.
func (v lanesView) Read(_ context.Context, number uint8, from uint64, limit int) ([]job.Record, error) {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.stream(number)
	switch {
	case from < l.first:
		return nil, scheduler.ErrRecordGone
	case from > l.end():
		return nil, nil
	}
	records := l.records[from-l.first:]
	return slices.Clone(records[:min(limit, len(records))]), nil
}

// Tail implements scheduler.Lanes. Records come by [Yard.Enqueue] or are read.
func (v lanesView) Tail(ctx context.Context, _ func(job.Record)) error {
	<-ctx.Done()
	return nil
}

// Load implements scheduler.Lanes.
func (v lanesView) Load(_ context.Context, pos job.Position, id job.ID) ([]byte, error) {
	r, err := v.yard.Streams.load(pos, id)
	if err != nil {
		return nil, err
	}
	return v.yard.Streams.body(&r)
}

// Publish implements scheduler.Lanes.
func (v lanesView) Publish(queue, key string, _ time.Time, body []byte, done func(error)) {
	v.yard.group.Go(func() {
		time.Sleep(time.Millisecond)
		records := []job.Record{{Queue: queue, Key: key, Body: body}}
		err := v.yard.Streams.store(records)
		done(err)
	})
}

// Relocate implements scheduler.Lanes.
func (v lanesView) Relocate(_ context.Context, number uint8, _, space uint64, records []ledger.NeededRecord) (seqs []uint64, size uint64, err error) {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.stream(number)
	for _, n := range records {
		if n.Seq < from.first {
			return seqs, size, scheduler.ErrRecordGone
		}
		r := from.records[n.Seq-from.first]
		if size+recordSize(&r) > space {
			break
		}
		r.Owner, r.Lane = n.Job, job.RelocatedLane
		if err := s.relocated.add(&r); err != nil {
			return seqs, size, err
		}
		s.Relocated++
		seqs, size = append(seqs, r.Seq), size+recordSize(&r)
	}
	return seqs, size, nil
}

// Purge implements scheduler.Lanes.
func (v lanesView) Purge(_ context.Context, number uint8, below uint64) error {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.stream(number)
	below = min(below, l.end())
	if below <= l.first {
		return nil
	}
	n := below - l.first
	for i := range l.records[:n] {
		l.bytes -= recordSize(&l.records[i])
	}
	s.Purged += n
	l.records, l.first = slices.Clone(l.records[n:]), below
	return nil
}

// Bodies implements scheduler.Lanes.
func (v lanesView) Bodies(context.Context) (stored []scheduler.StoredBody, _ error) {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.bodies)) {
		stored = append(stored, s.bodies[name].StoredBody)
	}
	return stored, nil
}

// DeadLetterBodies implements scheduler.Lanes.
func (v lanesView) DeadLetterBodies(context.Context) (map[job.ID]bool, error) {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	oldest := time.Now().Add(-deadLetterAge)
	s.letters = slices.DeleteFunc(s.letters, func(d deadLetter) bool { return d.at.Before(oldest) })
	owners := map[job.ID]bool{}
	for _, d := range s.letters {
		owners[d.owner] = true
	}
	return owners, nil
}

// RemoveBody implements scheduler.Lanes.
func (v lanesView) RemoveBody(_ context.Context, name string) error {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.bodies, name)
	return nil
}

// historyView implements outbox.Streams.
type historyView struct{ *member }

// LastPublished implements outbox.Streams.
func (v historyView) LastPublished(_ context.Context, which outbox.Stream) (seq, number uint64, err error) {
	s := v.yard.Streams
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.history[which]
	return h.seq, h.number, nil
}

var errWrongLast = errors.New("the stream ends elsewhere")

// Append implements outbox.Streams.
func (v historyView) Append(which outbox.Stream, b outbox.Batch, expect uint64, done func(uint64, error)) {
	s := v.yard.Streams
	h := &s.history[which]
	s.mu.Lock()
	at := time.Now().Add(time.Millisecond)
	if !at.After(h.busyUntil) { // appends keep their order
		at = h.busyUntil.Add(time.Microsecond)
	}
	h.busyUntil = at
	s.mu.Unlock()
	v.yard.group.Go(func() {
		time.Sleep(time.Until(at))
		s.mu.Lock()
		if expect != h.seq || b.First != h.number+1 {
			s.mu.Unlock()
			done(0, errWrongLast)
			return
		}
		h.seq, h.number = h.seq+1, h.number+b.Count
		seq := h.seq
		if which == outbox.DeadLetters && !b.BlobOwner.IsZero() {
			s.letters = append(s.letters, deadLetter{time.Now(), b.BlobOwner})
		}
		s.mu.Unlock()
		done(seq, nil)
	})
}

// HasSubscribers implements outbox.Streams.
func (historyView) HasSubscribers(string, string) bool { return false }

// PublishLive implements outbox.Streams.
func (historyView) PublishLive(string, string, []byte) {}

// BodySpace implements scheduler.Lanes. There is always space.
func (v lanesView) BodySpace(context.Context) (used, limit uint64, err error) { return 0, 0, nil }

// RemoveDeadLettersOf implements scheduler.Lanes.
func (v lanesView) RemoveDeadLettersOf(context.Context, job.ID) error { return nil }

// ApplyRetention implements scheduler.Lanes.
func (v lanesView) ApplyRetention(context.Context, job.Retention) error { return nil }

// EvictDeadLetters implements scheduler.Lanes.
func (v lanesView) EvictDeadLetters(context.Context, string, time.Time, int64) error { return nil }
