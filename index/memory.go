package index

import (
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

// get returns the document of a place, nil if there is none.
func (m *memory) get(at ledger.JobPlace) *job.Document {
	if d := m.live.byPlace[at]; d != nil {
		return d
	}
	return m.ended.byPlace[at]
}

func (m *memory) put(d *job.Document) {
	at, to, other := placeOf(d), &m.live, &m.ended
	if d.State.Ended() {
		to, other = other, to
	}
	other.remove(at)
	to.byPlace[at], to.list = d, nil
}

func (m *memory) remove(at ledger.JobPlace) {
	m.ended.remove(at)
	m.live.remove(at)
}

func (m *memory) len() int { return len(m.ended.byPlace) + len(m.live.byPlace) }

// documents is a set of documents.
type documents struct {
	byPlace map[ledger.JobPlace]*job.Document
	list    segment.Memory // all of them; nil if there are changes since
}

func newDocuments(space int) documents {
	return documents{byPlace: make(map[ledger.JobPlace]*job.Document, space)}
}

func (s *documents) remove(at ledger.JobPlace) {
	if before := len(s.byPlace); before > 0 {
		if delete(s.byPlace, at); len(s.byPlace) < before {
			s.list = nil
		}
	}
}

// all returns all documents. The list is not changed afterwards.
func (s *documents) all() segment.Memory {
	if s.list == nil {
		s.list = make(segment.Memory, 0, len(s.byPlace))
		for _, d := range s.byPlace {
			s.list = append(s.list, d)
		}
	}
	return s.list
}

// without returns a new list of the documents that are not at one of the places.
func without(docs segment.Memory, places map[ledger.JobPlace]bool) segment.Memory {
	return slices.DeleteFunc(slices.Clone(docs), func(d *job.Document) bool { return places[placeOf(d)] })
}

func placeOf(d *job.Document) ledger.JobPlace {
	return ledger.JobPlace{Accepted: d.Created.UnixNano(), ID: d.ID}
}

func cursorOf(at ledger.JobPlace) segment.Cursor {
	return segment.Cursor{Value: at.Accepted, ID: at.ID}
}
