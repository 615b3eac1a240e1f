package segment

import (
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Memory is a set of a few documents that are searched by looking at each. A copy keeps the documents that
// it has when others are added to the original.
type Memory struct {
	documents      []*job.Document
	created, ended span
}

// span is the smallest and the largest [query.Sort.Value] of a set of documents.
type span struct{ low, high int64 }

func (s *span) add(value int64) { s.low, s.high = min(s.low, value), max(s.high, value) }

// Add adds a document, which must not be changed.
func (m *Memory) Add(d *job.Document) {
	if len(m.documents) == 0 {
		m.created, m.ended = span{absent, -absent}, span{absent, -absent}
	}
	m.documents = append(m.documents, d)
	m.created.add(query.Sort{}.Value(d))
	m.ended.add(query.Sort{ByEnd: true}.Value(d))
}

// Len returns the number of documents.
func (m Memory) Len() int { return len(m.documents) }

// Span implements [Source].
func (m Memory) Span(by query.Sort) (low, high int64) {
	switch {
	case len(m.documents) == 0:
		return absent, -absent
	case by.ByEnd:
		return by.Floor(m.ended.low), by.Floor(m.ended.high)
	}
	return m.created.low, m.created.high
}

// Find implements [Source].
func (m Memory) Find(q *query.Query, from, to *Cursor, limit int) (hits []Hit, last *Cursor, err error) {
	for i, d := range m.documents {
		hit := Hit{Cursor: Cursor{q.Sort.Value(d), d.ID}, Number: i}
		if (from == nil || hit.follows(*from, q.Sort)) && (to == nil || !hit.follows(*to, q.Sort)) && q.Match(d) {
			hits = insert(hits, hit, q.Sort, limit)
		}
	}
	return hits, nil, nil
}

// Document implements [Source].
func (m Memory) Document(number int) (*job.Document, error) { return m.documents[number], nil }
