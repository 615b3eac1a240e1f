package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Plan is the result of verifying a file: its manifest, and how much of each
// stream a restore keeps.
type Plan struct {
	Manifest
	Keep []Stream `json:"keep"`
}

// Kept returns what is kept of a stream, nil if there is no such stream.
func (p *Plan) Kept(stream string) *Stream { return findStream(p.Keep, stream) }

// Verify reads a whole file. It returns an error if the file's content has
// changed, if its ledger cannot be decoded or has another hash, or if its streams
// lack what the ledger refers to. The error wraps [ErrDamaged] unless it is r's
// own.
func Verify(r io.Reader) (*Plan, error) {
	v := &verifier{streams: map[string]*stream{}}
	m, err := eachPart(r, v.readPart)
	if err != nil {
		return nil, err
	}
	plan := &Plan{Manifest: *m}
	if err := v.check(plan); err != nil {
		return nil, err
	}
	return plan, nil
}

// verifier collects from the parts of a file what check compares.
type verifier struct {
	ledger  *ledger.Ledger
	unended map[job.Position]job.ID // jobs of the ledger that have not ended, by the position of their record
	streams map[string]*stream      // by name of the part
}

// stream is what was found in the archive of a stream.
type stream struct {
	broken error // error of reading it; ignored if the manifest does not name the part
	state  streamState
	seen   uint64 // messages
	dense  bool   // without gaps
	first  uint64
	last   uint64
	ranges []numberRange         // of numbered messages, in order
	bodies map[string]*largeBody // by blob name: in a lane, the blobs that its records refer to; in the blobs' stream, what was found
}

// numberRange describes a message of a history stream: the message with sequence seq
// holds the entries numbered first to last.
type numberRange struct {
	seq, first, last uint64
	size             uint64 // as JetStream counts it
}

// messageOverhead is what JetStream adds to the length of a message's subject, headers
// and payload to get the message's size, in bytes.
const messageOverhead = 30

// readPart reads the ledger, which must be the first part, or the archive of a
// stream. It keeps an error of a stream for check, because the part may be an attempt
// that was interrupted.
func (v *verifier) readPart(name string, r io.Reader) error {
	if (name == LedgerPart) != (v.ledger == nil) {
		return damaged("it begins with %s instead of the ledger", name)
	}
	if name == LedgerPart {
		l, err := ledger.Decode(r)
		if err != nil {
			return damaged("malformed ledger: %v", err)
		}
		v.ledger, v.unended = l, maps.Collect(l.UnendedJobs)
		return nil
	}
	s := &stream{dense: true, bodies: map[string]*largeBody{}}
	handle := v.messageHandler(name, s)
	v.streams[name] = s
	begin := func(state streamState) error {
		s.state = state
		return nil
	}
	s.broken = scanMessages(r, begin, func(m *message) error {
		if s.seen > 0 && m.Sequence != s.last+1 {
			s.dense = false
		}
		if s.seen++; s.seen == 1 {
			s.first = m.Sequence
		}
		s.last = m.Sequence
		if first, count, ok := parseNumbers(m.data[:m.HeaderSize]); ok {
			size := uint64(len(m.Name)) + uint64(len(m.data)) + messageOverhead
			s.ranges = append(s.ranges, numberRange{m.Sequence, first, first + max(count, 1) - 1, size})
		}
		handle(m)
		return nil
	})
	return nil
}

// parseNumbers returns the number of the first entry of a history message and the count
// of its entries, 0 if the header has no count. ok is false if the message has no
// number.
func parseNumbers(header []byte) (first, count uint64, ok bool) {
	for line := range bytes.SplitSeq(header, []byte("\r\n")) {
		key, value, found := strings.Cut(string(line), ":")
		if !found {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		switch {
		case err != nil:
		case key == subjects.HeaderFirst:
			first, ok = n, true
		case key == subjects.HeaderCount:
			count = n
		}
	}
	return first, count, ok
}

// check compares the manifest, the ledger and the streams, and fills in p.Keep.
func (v *verifier) check(p *Plan) error {
	if v.ledger == nil {
		return damaged("it contains no ledger")
	}
	hash, err := v.ledger.Hash()
	if err != nil {
		return fmt.Errorf("hash the ledger: %w", err)
	}
	l, m := v.ledger, &p.Manifest
	if hex.EncodeToString(hash[:]) != m.Ledger.SHA256 || l.Index() != m.Index {
		return damaged("its ledger does not match its manifest, or this version of the program decodes it differently")
	}
	if m.LastEvent != l.LastEvent() || m.LastResult != l.LastResult() || m.LastDead != l.LastDeadLetter() || !slices.Equal(Queues(l), m.Queues) {
		return damaged("the counts in its manifest do not match its ledger")
	}
	if id, _ := l.Restoring(); id != "" {
		return damaged("it was written while a restore was in progress")
	}
	for i := range m.Streams {
		saved := &m.Streams[i]
		s := v.streams[saved.Name]
		switch {
		case s == nil:
			return damaged("stream %s is missing: there is no part %q", saved.Stream, saved.Name)
		case m.Stream(saved.Stream) != saved:
			return damaged("stream %s occurs twice", saved.Stream)
		case s.broken != nil:
			return damaged("malformed stream %s: %v", saved.Stream, s.broken)
		}
		if s.state.FirstSeq != saved.First || s.state.LastSeq != saved.Last || s.seen > saved.Messages {
			return damaged("stream %s has %d messages up to %d, its manifest says %d up to %d", saved.Stream, s.seen, s.last, saved.Messages, saved.Last)
		}
		p.Keep = append(p.Keep, *saved)
	}
	if err := v.checkLanes(m); err != nil {
		return err
	}
	if err := v.checkBodies(m); err != nil {
		return err
	}
	return v.checkOutboxStreams(p)
}

// checkLanes returns an error unless each lane contains all records that the
// ledger may still read.
func (v *verifier) checkLanes(m *Manifest) error {
	lanes, needs := v.ledger.Lanes(), v.ledger.Needs(1)
	for i, lane := range lanes {
		saved := m.Stream(subjects.LaneStream(uint8(i)))
		if saved == nil {
			return damaged("lane %d is missing", i)
		}
		s := v.streams[saved.Name]
		complete := s.dense && s.first == saved.First && s.last == saved.Last
		if s.seen == 0 {
			complete = saved.Messages == 0
		}
		needed := needs[i].Lowest()
		switch {
		case saved.Identity != lane.Identity:
			return damaged("lane %d has identity %s, the ledger has %s", i, saved.Identity, lane.Identity)
		case saved.Last < lane.Cursor:
			return damaged("lane %d ends at %d, the ledger has ingested it up to %d", i, saved.Last, lane.Cursor)
		case !complete:
			return damaged("lane %d has a gap: %d records from %d to %d", i, s.seen, s.first, s.last)
		case needed > 0 && needed < saved.First && (lane.Cursor != needed || lane.Cursor+1 < saved.First):
			return damaged("lane %d begins at %d, jobs need it from %d", i, saved.First, needed)
		}
	}
	if m.Stream(subjects.StreamRelocated) == nil {
		return damaged("stream %s is missing", subjects.StreamRelocated)
	}
	for at, id := range v.ledger.UnendedJobs {
		saved := m.Stream(subjects.LaneStream(at.Lane))
		if saved == nil || at.Seq < saved.First || at.Seq > saved.Last {
			return damaged("the record of job %s, %s, is missing", id, at)
		}
	}
	return nil
}

// checkOutboxStreams cuts from each history stream in p.Keep the messages with
// numbers that the ledger has not assigned yet. It returns an error if a stream has a
// gap, or ends before what the ledger has recorded as published.
func (v *verifier) checkOutboxStreams(p *Plan) error {
	l := v.ledger
	publishedResults := l.LastResult() - uint64(len(l.ResultsAfter(0))) // the outbox has those that are not published
	publishedDeadLetters := l.LastDeadLetter() - uint64(len(l.DeadLettersAfter(0)))
	for _, outbox := range []struct {
		stream              string
		assigned, published uint64 // the last number assigned, and the last one published
		dense               bool   // false: dead letters may have been removed
	}{
		{subjects.StreamEvents, l.LastEvent(), l.PublishedEvents(), true},
		{subjects.StreamResults, l.LastResult(), publishedResults, true},
		{subjects.StreamDLQ, l.LastDeadLetter(), publishedDeadLetters, false},
	} {
		keep := p.Kept(outbox.stream)
		if keep == nil {
			return damaged("stream %s is missing", outbox.stream)
		}
		s := v.streams[keep.Name]
		last := uint64(0)
		for i, r := range s.ranges {
			if r.last > outbox.assigned {
				keep.Last = r.seq - 1
				for _, dropped := range s.ranges[i:] {
					keep.Messages, keep.Bytes = keep.Messages-1, keep.Bytes-min(dropped.size, keep.Bytes)
				}
				break
			}
			if outbox.dense && last > 0 && r.first != last+1 {
				return damaged("%s has a gap between numbers %d and %d", outbox.stream, last, r.first)
			}
			last = r.last
		}
		if outbox.dense && last < outbox.published && (last > 0 || keep.Last == 0) { // all published messages may have expired
			return damaged("%s ends at number %d, the ledger has published %d", outbox.stream, last, outbox.published)
		}
	}
	return nil
}

// Queues returns a ledger's queues with their numbers of jobs, sorted by name.
func Queues(l *ledger.Ledger) []api.BackupQueue {
	var all []api.BackupQueue
	for _, q := range l.Queues() {
		all = append(all, api.BackupQueue{
			Name: q.Name, Paused: q.Paused, Limit: q.Config.Limit,
			Waiting: q.Counts[job.Waiting], Delayed: q.Counts[job.Delayed], Active: q.Counts[job.Active],
			Completed: q.Counts[job.Completed], Failed: q.Counts[job.Failed], Cancelled: q.Counts[job.Cancelled], Expired: q.Counts[job.Expired],
		})
	}
	return all
}

// Where bodies that are too large for a record are stored.
const (
	blobSubject = "yard.blob." // <name>.<chunk>
	nodeToken   = "n"          // fourth token of the subject of records written by nodes; only those refer to blobs
)

// lanePrefix is the beginning of the names of the lanes' streams.
var lanePrefix = strings.TrimSuffix(subjects.LaneStream(0), "0")

// largeBody is a body that is stored as a blob: its reference in a record and, in
// the blobs' stream, the chunks that were read so far.
type largeBody struct {
	job.Blob
	job job.ID // the job; zero: of a record that is not ingested yet

	hash       hash.Hash      // of the chunks before next
	next       int            // number of the first chunk that was not read yet
	size       int64          // bytes of the chunks before next
	outOfOrder map[int][]byte // chunks beyond next, by their number
}

// messageHandler returns the function that collects what checkBodies compares from
// each message of a part: the references of a lane's records to blobs, and the
// chunks of the blobs that the lanes read before refer to. It ignores other streams.
func (v *verifier) messageHandler(part string, s *stream) func(*message) {
	name, _, _ := strings.Cut(part, ".") // what follows is the number of the attempt
	if lane, err := strconv.ParseUint(strings.TrimPrefix(name, lanePrefix), 10, 8); err == nil && strings.HasPrefix(name, lanePrefix) {
		return func(m *message) { v.recordBlob(s, uint8(lane), m) }
	}
	if name == subjects.StreamRelocated {
		return func(m *message) { v.recordBlob(s, job.RelocatedLane, m) }
	}
	if name != subjects.StreamBlobs {
		return func(*message) {}
	}
	for _, lane := range v.streams {
		for name, b := range lane.bodies {
			s.bodies[name] = &largeBody{Blob: b.Blob, job: b.job, hash: sha256.New(), outOfOrder: map[int][]byte{}}
		}
	}
	return s.addChunk
}

// recordBlob adds the blob that a record of a lane refers to, if any, to s. It
// ignores records of jobs that have ended: a record is still needed if its job has
// not, or if it is not ingested yet.
func (v *verifier) recordBlob(s *stream, lane uint8, m *message) {
	id, unended := v.unended[job.Position{Lane: lane, Seq: m.Sequence}]
	lanes := v.ledger.Lanes()
	ingested := lane == job.RelocatedLane || int(lane) < len(lanes) && m.Sequence <= lanes[lane].Cursor
	if !unended && ingested {
		return
	}
	subject := strings.Split(m.Name, ".")
	text := m.data[m.HeaderSize:]
	ofNode := lane == job.RelocatedLane || len(subject) >= 5 && subject[3] == nodeToken
	if !ofNode || !bytes.Contains(text, []byte(`"blob"`)) {
		return
	}
	if spec, err := job.ParseSpec(text); err == nil && spec.Blob != nil {
		s.bodies[spec.Blob.Name] = &largeBody{Blob: *spec.Blob, job: id}
	}
}

// addChunk adds the chunk of a blob that m contains to the size and hash of the
// blob's body. They need the chunks in their order: a chunk that comes too early is
// kept until those before it were read. Chunks of unknown blobs, and a chunk that
// was stored twice, are ignored.
func (s *stream) addChunk(m *message) {
	nameAndNumber, ok := strings.CutPrefix(m.Name, blobSubject)
	dot := strings.LastIndexByte(nameAndNumber, '.')
	if !ok || dot < 0 {
		return
	}
	number, err := strconv.Atoi(nameAndNumber[dot+1:])
	b := s.bodies[nameAndNumber[:dot]]
	if err != nil || b == nil || number < b.next || number >= b.Chunks {
		return
	}
	b.outOfOrder[number] = bytes.Clone(m.data[m.HeaderSize:])
	for {
		chunk, ok := b.outOfOrder[b.next]
		if !ok {
			return
		}
		delete(b.outOfOrder, b.next)
		b.next++
		b.size += int64(len(chunk))
		b.hash.Write(chunk)
	}
}

// checkBodies returns an error unless every blob that a needed record refers to is
// complete.
func (v *verifier) checkBodies(m *Manifest) error {
	stored := map[string]*largeBody{}
	if blobs := m.Stream(subjects.StreamBlobs); blobs != nil {
		stored = v.streams[blobs.Name].bodies
	}
	streams := []string{subjects.StreamRelocated}
	for i := range v.ledger.Lanes() {
		streams = append(streams, subjects.LaneStream(uint8(i)))
	}
	for _, stream := range streams {
		for name, needed := range v.streams[m.Stream(stream).Name].bodies {
			owner := "a record of " + stream + " that is not ingested yet"
			if needed.job != (job.ID{}) {
				owner = "job " + needed.job.String()
			}
			switch found := stored[name]; {
			case found == nil || found.next < needed.Chunks:
				return damaged("the body of %s, blob %s, is missing or incomplete", owner, name)
			case found.size != needed.Size || hex.EncodeToString(found.hash.Sum(nil)) != needed.SHA256:
				return damaged("the body of %s, blob %s, does not match its record", owner, name)
			}
		}
	}
	return nil
}
