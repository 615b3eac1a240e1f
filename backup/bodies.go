package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"strconv"
	"strings"

	"yardmaster/job"
)

// Where bodies lie that are too large for a record.
const (
	blobStream  = "YARD_BLOBS"
	blobSubject = "yard.blob." // <name>.<chunk>
	byNodes     = "n"          // fourth token of a record that a node wrote: only those point to blobs
)

// body is one that is too large for a record: what a record says of it, and
// how much of it was found.
type body struct {
	job.Blob
	of job.ID // the job; zero: a record that is not folded yet

	sum    hash.Hash // of the chunks that were found, up to next
	next   int
	size   int64
	beyond map[int][]byte // chunks that came before their turn
}

// looker gives what looks at each message of a part.
func (v *verifier) looker(part string, s *stream) func(*message) {
	stream, _, _ := strings.Cut(part, ".") // what follows is the number of a try
	if lane, err := strconv.ParseUint(strings.TrimPrefix(stream, lanePrefix), 10, 8); err == nil && strings.HasPrefix(stream, lanePrefix) {
		return func(m *message) { v.pointer(s, uint8(lane), m) }
	}
	if stream != blobStream {
		return func(*message) {}
	}
	for _, lane := range v.streams { // blobs come after the records that point to them
		for name, b := range lane.bodies {
			s.bodies[name] = &body{Blob: b.Blob, of: b.of, sum: sha256.New(), beyond: map[int][]byte{}}
		}
	}
	return s.chunk
}

// pointer notes the blob of a record that somebody will read.
func (v *verifier) pointer(s *stream, lane uint8, m *message) {
	id, needed := v.unended[job.Position{Lane: lane, Seq: m.Sequence}]
	if lanes := v.ledger.Lanes(); !needed && int(lane) < len(lanes) && m.Sequence <= lanes[lane].Cursor {
		return
	}
	subject := strings.Split(m.Name, ".")
	text := m.data[m.HeaderSize:]
	if len(subject) < 5 || subject[3] != byNodes || !bytes.Contains(text, []byte(`"blob"`)) {
		return
	}
	if spec, err := job.ParseSpec(text); err == nil && spec.Blob != nil {
		s.bodies[spec.Blob.Name] = &body{Blob: *spec.Blob, of: id}
	}
}

// chunk adds a piece of a blob to what was found. One that was stored twice is
// the same.
func (s *stream) chunk(m *message) {
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
	b.beyond[n] = bytes.Clone(m.data[m.HeaderSize:])
	for {
		chunk, there := b.beyond[b.next]
		if !there {
			return
		}
		delete(b.beyond, b.next)
		b.next++
		b.size += int64(len(chunk))
		b.sum.Write(chunk)
	}
}

// bodies: what a record that is still to be read points to is there, and whole.
func (v *verifier) bodies(m *Manifest) error {
	found := map[string]*body{}
	if of := m.Stream(blobStream); of != nil {
		found = v.streams[of.Name].bodies
	}
	for i := range v.ledger.Lanes() {
		for name, want := range v.streams[m.Stream(lanePrefix+strconv.Itoa(i)).Name].bodies {
			whose := "a record of lane " + strconv.Itoa(i) + " that is not folded yet"
			if want.of != (job.ID{}) {
				whose = "job " + want.of.String()
			}
			switch got := found[name]; {
			case got == nil || got.next < want.Chunks:
				return damaged("the body of %s, blob %s, is not in it", whose, name)
			case got.size != want.Size || hex.EncodeToString(got.sum.Sum(nil)) != want.SHA256:
				return damaged("the body of %s, blob %s, is not what its record says", whose, name)
			}
		}
	}
	return nil
}
