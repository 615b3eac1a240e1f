package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Where bodies that are too large for a record are stored.
const (
	blobSubject = "yard.blob." // <name>.<chunk>
	nodeToken   = "n"          // fourth token of the subject of records written by nodes; only those refer to blobs
)

// lanePrefix is the beginning of the names of the lanes' streams.
var lanePrefix = strings.TrimSuffix(cluster.LaneStream(0), "0")

// largeBody is a body that is stored as a blob: its reference in a record, and the
// chunks that were found.
type largeBody struct {
	job.Blob
	job job.ID // the job; zero: of a record that is not ingested yet

	hash       hash.Hash      // of the chunks before next
	next       int            // first chunk that was not found yet
	size       int64          // bytes of the chunks before next
	outOfOrder map[int][]byte // chunks found beyond next
}

// messageHandler returns the function that inspects each message of a part.
func (v *verifier) messageHandler(part string, s *stream) func(*message) {
	stream, _, _ := strings.Cut(part, ".") // what follows is the number of the attempt
	if lane, err := strconv.ParseUint(strings.TrimPrefix(stream, lanePrefix), 10, 8); err == nil && strings.HasPrefix(stream, lanePrefix) {
		return func(m *message) { v.recordBlob(s, uint8(lane), m) }
	}
	if stream != cluster.StreamBlobs {
		return func(*message) {}
	}
	for _, lane := range v.streams { // blobs come after the records that refer to them
		for name, b := range lane.bodies {
			s.bodies[name] = &largeBody{Blob: b.Blob, job: b.job, hash: sha256.New(), outOfOrder: map[int][]byte{}}
		}
	}
	return s.addChunk
}

// recordBlob records the blob that a record of a lane refers to, if the record is
// still needed.
func (v *verifier) recordBlob(s *stream, lane uint8, m *message) {
	id, needed := v.unfinished[job.Position{Lane: lane, Seq: m.Sequence}]
	if lanes := v.ledger.Lanes(); !needed && int(lane) < len(lanes) && m.Sequence <= lanes[lane].Cursor {
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

// addChunk adds a chunk of a blob to what was found. A chunk may be stored twice.
func (s *stream) addChunk(m *message) {
	name, ok := strings.CutPrefix(m.Name, blobSubject)
	at := strings.LastIndexByte(name, '.')
	if !ok || at < 0 {
		return
	}
	n, err := strconv.Atoi(name[at+1:])
	b := s.bodies[name[:at]]
	if err != nil || b == nil || n < b.next || n >= b.Chunks {
		return
	}
	b.outOfOrder[n] = bytes.Clone(m.data[m.HeaderSize:])
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
	found := map[string]*largeBody{}
	if of := m.Stream(cluster.StreamBlobs); of != nil {
		found = v.streams[of.Name].bodies
	}
	for i := range v.ledger.Lanes() {
		for name, want := range v.streams[m.Stream(cluster.LaneStream(uint8(i))).Name].bodies {
			owner := "a record of lane " + strconv.Itoa(i) + " that is not ingested yet"
			if want.job != (job.ID{}) {
				owner = "job " + want.job.String()
			}
			switch got := found[name]; {
			case got == nil || got.next < want.Chunks:
				return damaged("the body of %s, blob %s, is missing or incomplete", owner, name)
			case got.size != want.Size || hex.EncodeToString(got.hash.Sum(nil)) != want.SHA256:
				return damaged("the body of %s, blob %s, does not match its record", owner, name)
			}
		}
	}
	return nil
}
