package index

import (
	"slices"

	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// memory has the documents that are in no segment yet. Documents are not changed, but replaced.
type memory struct {
	documents map[ledger.JobPlace]*job.Document
	ended     segment.Memory // those of jobs that have ended, and the others; nil if there are changes since
	live      segment.Memory
	spool     uint64 // generation of the first spool that has some of them
}

func newMemory(spool uint64) *memory {
	return &memory{documents: make(map[ledger.JobPlace]*job.Document), spool: spool}
}

// without returns a new list of the documents that are not at one of the places.
func without(docs segment.Memory, places map[ledger.JobPlace]bool) segment.Memory {
	return slices.DeleteFunc(slices.Clone(docs), func(d *job.Document) bool { return places[placeOf(d)] })
}

func (m *memory) put(d *job.Document) {
	m.documents[placeOf(d)] = d
	m.ended, m.live = nil, nil
}

func (m *memory) remove(at ledger.JobPlace) {
	if m.documents[at] != nil {
		delete(m.documents, at)
		m.ended, m.live = nil, nil
	}
}

// split returns the documents of jobs that have ended, and those of the others.
func (m *memory) split() (ended, live segment.Memory) {
	if m.ended == nil {
		m.ended = make(segment.Memory, 0, len(m.documents))
		for _, d := range m.documents {
			if d.State.Ended() {
				m.ended = append(m.ended, d)
			} else {
				m.live = append(m.live, d)
			}
		}
	}
	return m.ended, m.live
}

// takeLive removes the documents of jobs that have not ended and returns them, unless they are more than limit.
func (m *memory) takeLive(limit int) segment.Memory {
	_, live := m.split()
	if len(live) > limit {
		return nil
	}
	for _, d := range live {
		delete(m.documents, placeOf(d))
	}
	m.live = nil
	return live
}

func placeOf(d *job.Document) ledger.JobPlace {
	return ledger.JobPlace{Accepted: d.Created.UnixNano(), ID: d.ID}
}

func cursorOf(at ledger.JobPlace) segment.Cursor {
	return segment.Cursor{Value: at.Accepted, ID: at.ID}
}
