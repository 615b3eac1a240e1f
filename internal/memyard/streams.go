package memyard

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster/streams"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// ErrFull is returned for a record that does not fit into its lane.
var ErrFull = errors.New("the lane is full")

// recordOverhead is the size of a record in addition to its body, in bytes.
const recordOverhead = 100

// deadLetterAge is how long dead letters are kept.
const deadLetterAge = 7 * 24 * time.Hour

// Streams are the yard's streams.
type Streams struct {
	keep bool // see Config.KeepMessages

	mu        sync.Mutex // guards the fields below
	lanes     []stream
	relocated stream
	bodies    map[string]largeBody
	results   map[string][]byte // large results, by name
	history   [3]historyStream
	letters   []deadLetter
	errors    map[job.ID][]job.AttemptError // oldest first
	next      int                           // lane of the next published record

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
	max      uint64 // 0: unlimited
}

// historyStream is a stream of the outbox: its last sequence and item.
type historyStream struct {
	seq, number uint64
	busyUntil   time.Time       // when the last append that was sent is stored
	messages    []streams.Batch // if they are kept, by sequence
}

func newStreams(count int, laneBytes uint64, keep bool) *Streams {
	s := &Streams{
		keep: keep, lanes: make([]stream, count), relocated: stream{first: 1, max: laneBytes},
		bodies: map[string]largeBody{}, results: map[string][]byte{}, errors: map[job.ID][]job.AttemptError{},
	}
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
	if l.max > 0 && l.bytes+recordSize(r) > l.max {
		return ErrFull
	}
	r.Seq, r.Last = l.end()+1, true
	l.records = append(l.records, *r)
	l.bytes += recordSize(r)
	return nil
}

// Store appends records to the lane that the first one names, and sets their positions
// and times.
func (s *Streams) Store(records []job.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.storeLocked(records)
}

func (s *Streams) storeLocked(records []job.Record) error {
	number := records[0].Lane
	lane := &s.lanes[number]
	now := time.Now()
	for i := range records {
		records[i].Lane, records[i].Stored = number, now
		if err := lane.add(&records[i]); err != nil {
			return fmt.Errorf("lane %d with %d of %d bytes: %w", number, lane.bytes, lane.max, err)
		}
	}
	return nil
}

// Publish stores the record of a job with an id, in the lanes in turn, and returns it.
func (s *Streams) Publish(queue, id string, body []byte) (job.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	records := []job.Record{{Queue: queue, Key: id, Body: body}}
	records[0].Lane = uint8(s.next % len(s.lanes))
	if err := s.storeLocked(records); err != nil {
		return job.Record{}, err
	}
	s.next++
	return records[0], nil
}

// StoreLarge stores a body outside of its record, and returns the record's body.
func (s *Streams) StoreLarge(owner job.ID, body []byte) []byte {
	reference, _ := json.Marshal(s.storeBody(owner, body))
	return fmt.Appendf(nil, `{"blob":%s,%s`, reference, body[1:])
}

// StoreBody stores a large body of the record with an id.
func (s *Streams) StoreBody(id string, body []byte) (job.Blob, error) {
	owner, err := job.ParseID(id)
	if err != nil {
		return job.Blob{}, err
	}
	return s.storeBody(owner, body), nil
}

func (s *Streams) storeBody(owner job.ID, body []byte) job.Blob {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	name := fmt.Sprintf("%s.%d", owner, now.UnixNano())
	s.bodies[name] = largeBody{scheduler.StoredBody{Name: name, Owner: owner, Stored: now}, body}
	return blobOf(name, body)
}

// storeResult stores a large result, if messages are kept.
func (s *Streams) storeResult(name string, data []byte) job.Blob {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keep {
		s.results[name] = bytes.Clone(data)
	}
	return blobOf(name, data)
}

// storeError stores the error of an attempt, if messages are kept.
func (s *Streams) storeError(id job.ID, e *job.AttemptError) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keep {
		s.errors[id] = append(s.errors[id], *e)
	}
}

// AttemptError returns the error of a job's dispatch, if it is the last one that is stored for the job.
func (s *Streams) AttemptError(_ context.Context, id job.ID, n uint32) (*job.AttemptError, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if all := s.errors[id]; len(all) > 0 && all[len(all)-1].N == n {
		return new(all[len(all)-1]), nil
	}
	return nil, streams.ErrNotStored
}

// AttemptErrors returns at most limit of the errors of a job, newest first.
func (s *Streams) AttemptErrors(_ context.Context, id job.ID, limit, _ int) (errs []job.AttemptError, more bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.errors[id]
	for i := len(all) - 1; i >= 0 && len(errs) < limit; i-- {
		errs = append(errs, all[i])
	}
	return errs, len(errs) < len(all), nil
}

// blobOf returns the reference to a large body or result.
func blobOf(name string, data []byte) job.Blob {
	sum := sha256.Sum256(data)
	return job.Blob{Name: name, Chunks: 1, Size: int64(len(data)), SHA256: hex.EncodeToString(sum[:])}
}

// RemoveBody removes a large body.
func (s *Streams) RemoveBody(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.bodies, name)
}

// StoreRelocated stores records in the stream of relocated records, and returns their
// sequences there.
func (s *Streams) StoreRelocated(records []job.Record) (seqs []uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		r.Lane = job.RelocatedLane
		if err := s.relocated.add(&r); err != nil {
			return seqs, err
		}
		seqs = append(seqs, r.Seq)
	}
	return seqs, nil
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

// LaneEnds returns the last sequences of the lanes.
func (s *Streams) LaneEnds() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	ends := make([]uint64, len(s.lanes))
	for i := range s.lanes {
		ends[i] = s.lanes[i].end()
	}
	return ends
}

// load returns the record at a position, which must be of the job with the id if that is
// not zero.
func (s *Streams) load(pos job.Position, id job.ID) (job.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.stream(pos.Lane)
	if pos.Seq < l.first || pos.Seq > l.end() {
		return job.Record{}, streams.ErrNotStored
	}
	r := l.records[pos.Seq-l.first]
	if pos.Relocated() && !id.IsZero() && r.Owner != id {
		return job.Record{}, fmt.Errorf("the relocated record %d is of job %s, not %s", pos.Seq, r.Owner, id)
	}
	return r, nil
}

// loadBody returns the body of the job whose record is at a position.
func (s *Streams) loadBody(pos job.Position, id job.ID) ([]byte, error) {
	r, err := s.load(pos, id)
	if err != nil {
		return nil, err
	}
	return s.resolve(r.Body)
}

// resolve returns the body of a record, which may refer to a large one.
func (s *Streams) resolve(record []byte) ([]byte, error) {
	if !bytes.Contains(record, []byte(`"blob"`)) {
		return record, nil
	}
	var reference struct {
		Blob *job.Blob `json:"blob"`
	}
	if json.Unmarshal(record, &reference) != nil || reference.Blob == nil {
		return record, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	body, ok := s.bodies[reference.Blob.Name]
	if !ok {
		return nil, streams.ErrNotStored
	}
	return body.text, nil
}

// relocate copies records of a lane to the stream of relocated records, as
// [scheduler.Lanes].
func (s *Streams) relocate(number uint8, space uint64, needed []ledger.NeededRecord) (seqs []uint64, size uint64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.stream(number)
	for _, n := range needed {
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

// purge removes the records of a stream below a sequence, except its last one.
func (s *Streams) purge(number uint8, below uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.stream(number)
	below = min(below, l.end())
	if below <= l.first {
		return
	}
	n := below - l.first
	for i := range l.records[:n] {
		l.bytes -= recordSize(&l.records[i])
	}
	s.Purged += n
	l.records, l.first = slices.Clone(l.records[n:]), below
}
