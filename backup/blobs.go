package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/cluster/subjects"
	"github.com/yardmaster-dev/yardmaster/job"
)

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
	if lanes := v.ledger.Lanes(); !unended && int(lane) < len(lanes) && m.Sequence <= lanes[lane].Cursor {
		return
	}
	subject := strings.Split(m.Name, ".")
	text := m.data[m.HeaderSize:]
	if len(subject) < 5 || subject[3] != nodeToken || !bytes.Contains(text, []byte(`"blob"`)) {
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
	for i := range v.ledger.Lanes() {
		for name, want := range v.streams[m.Stream(subjects.LaneStream(uint8(i))).Name].bodies {
			owner := "a record of lane " + strconv.Itoa(i) + " that is not ingested yet"
			if want.job != (job.ID{}) {
				owner = "job " + want.job.String()
			}
			switch got := stored[name]; {
			case got == nil || got.next < want.Chunks:
				return damaged("the body of %s, blob %s, is missing or incomplete", owner, name)
			case got.size != want.Size || hex.EncodeToString(got.hash.Sum(nil)) != want.SHA256:
				return damaged("the body of %s, blob %s, does not match its record", owner, name)
			}
		}
	}
	return nil
}
