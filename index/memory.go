package index

import (
	"maps"
	"slices"

	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// memory has the documents that are in no segment yet. Documents are not changed, but replaced.
type memory struct {
	ended documents // of jobs that have ended
	live  documents // of the others
	spool uint64    // generation of the first spool that has some of them
}

// newMemory returns an empty memory, with space for some documents of jobs that have ended.
func newMemory(spool uint64, ended int) *memory {
	return &memory{ended: newDocuments(ended), live: newDocuments(0), spool: spool}
}

// get returns the document of a place, or nil.
func (m *memory) get(at ledger.JobPlace) *job.Document {
	if d := m.live.byPlace[at]; d != nil {
		return d
	}
	return m.ended.byPlace[at]
}

// put adds a document, in the place of an earlier one.
func (m *memory) put(d *job.Document) {
	at := placeOf(d)
	if !d.State.Ended() {
		m.ended.remove(at)
		m.live.put(at, d)
		return
	}
	m.live.outdate(at)
	m.ended.put(at, d)
}

func (m *memory) remove(at ledger.JobPlace) {
	m.ended.remove(at)
	m.live.remove(at)
}

func (m *memory) len() int { return len(m.ended.byPlace) + len(m.live.byPlace) }

// documents is a set of documents. For searches, which read them without a lock, they are in parts, too.
type documents struct {
	byPlace map[ledger.JobPlace]*job.Document
	parts   []segment.Memory // nil: they are to be made
	// outdated is how many documents in parts are not in byPlace: of jobs that have ended, whose state is asked
	// of the ledger anyway.
	outdated int
}

// partSize is the number of documents in a part.
const partSize = 2048

func newDocuments(space int) documents {
	return documents{byPlace: make(map[ledger.JobPlace]*job.Document, space), parts: []segment.Memory{}}
}

func (s *documents) put(at ledger.JobPlace, d *job.Document) {
	before := len(s.byPlace)
	s.byPlace[at] = d
	switch {
	case len(s.byPlace) == before:
		s.parts = nil // they have the one that was replaced
	case s.parts != nil:
		s.addToParts(d)
	}
}

// remove removes the document of a place, if there is one, also an outdated one.
func (s *documents) remove(at ledger.JobPlace) {
	before := len(s.byPlace)
	delete(s.byPlace, at)
	if s.outdated > 0 || len(s.byPlace) < before {
		s.parts = nil
	}
}

// outdate removes the document of a job that has ended, but not from the parts, unless they have many of
// these.
func (s *documents) outdate(at ledger.JobPlace) {
	before := len(s.byPlace)
	if delete(s.byPlace, at); len(s.byPlace) == before || s.parts == nil {
		return
	}
	if s.outdated++; s.outdated > len(s.byPlace)+partSize {
		s.parts = nil
	}
}

func (s *documents) addToParts(d *job.Document) {
	if n := len(s.parts); n == 0 || s.parts[n-1].Len() == partSize {
		s.parts = append(s.parts, segment.Memory{})
	}
	s.parts[len(s.parts)-1].Add(d)
}

// all returns all documents in parts. Each part has jobs that were accepted one after the other, so that a search
// reads few parts.
func (s *documents) all() []segment.Memory {
	if s.parts == nil {
		s.parts, s.outdated = []segment.Memory{}, 0
		docs := slices.Collect(maps.Values(s.byPlace))
		segment.Sort(docs)
		for _, d := range docs {
			s.addToParts(d)
		}
	}
	return s.parts
}

// visible returns all documents but those at some places.
func (s *documents) visible(hidden map[ledger.JobPlace]bool) []segment.Memory {
	if len(hidden) == 0 {
		return s.all()
	}
	visible := documents{}
	for _, d := range s.except(hidden) {
		visible.addToParts(d)
	}
	return visible.parts
}

// except returns the documents that are not at one of the places.
func (s *documents) except(places map[ledger.JobPlace]bool) []*job.Document {
	docs := make([]*job.Document, 0, len(s.byPlace))
	for at, d := range s.byPlace {
		if !places[at] {
			docs = append(docs, d)
		}
	}
	return docs
}

func placeOf(d *job.Document) ledger.JobPlace {
	return ledger.JobPlace{Accepted: d.Created.UnixNano(), ID: d.ID}
}

func cursorOf(at ledger.JobPlace) segment.Cursor {
	return segment.Cursor{Value: at.Accepted, ID: at.ID}
}
