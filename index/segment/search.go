package segment

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"sort"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Cursor is the place of a job in an order. It stays the same as long as the job's document
// does, whatever happens to others.
type Cursor struct {
	Value int64 // [query.Sort.Value]
	ID    job.ID
}

// follows reports whether c is after o in an order.
func (c Cursor) follows(o Cursor, by query.Sort) bool {
	order := cmp.Or(cmp.Compare(c.Value, o.Value), bytes.Compare(c.ID[:], o.ID[:]))
	return order > 0 && by.Oldest || order < 0 && !by.Oldest
}

// Hit is a document that matches a query.
type Hit struct {
	Cursor
	Number int // of the document in its source
	source int
}

// Source is a set of documents that can be searched: a [*Segment], or a [Memory].
type Source interface {
	// Span returns the smallest and the largest [query.Sort.Value] of its documents. The
	// smallest one is larger if there are none.
	Span(by query.Sort) (low, high int64)
	// Find returns the first documents that match the query in its order, at most limit of
	// those that follow the cursor from, unless it is nil. It may leave out those that
	// follow the cursor to, unless that is nil. If it has not looked at all documents, last is the
	// cursor of the last one that it looked at.
	Find(q *query.Query, from, to *Cursor, limit int) (hits []Hit, last *Cursor, err error)
	// Document returns the document with the number of a [Hit].
	Document(number int) (*job.Document, error)
}

// Page is a part of the documents that match a query.
type Page struct {
	Documents []*job.Document
	// Next is where the next page continues; nil if no more documents match. A page that is not the
	// last one may have fewer documents than the limit, if a source has not looked at all of its own.
	Next *Cursor
}

// Search returns the first documents that match the query in its order, at most limit (which
// must be positive) of those that follow the cursor after, unless it is nil. It reads only
// the sources that can have some. Of documents with the same cursor, it returns one.
func Search(ctx context.Context, q *query.Query, after *Cursor, limit int, sources ...Source) (*Page, error) {
	order := bestFirst(q.Sort, sources)
	var hits []Hit
	var end *Cursor // documents after it were not looked at in all sources
	for _, i := range order {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		low, high := sources[i].Span(q.Sort)
		first, last := high, low
		if q.Sort.Oldest {
			first, last = low, high
		}
		if after != nil && before(last, after.Value, q.Sort) || low > high {
			continue
		}
		var worst *Cursor
		if len(hits) > limit {
			worst = &hits[limit].Cursor
			if before(worst.Value, first, q.Sort) {
				break // this source and all after it have only later documents
			}
		}
		if end != nil && (worst == nil || worst.follows(*end, q.Sort)) {
			worst = end
		}
		found, looked, err := sources[i].Find(q, after, worst, limit+1)
		if err != nil {
			return nil, err
		}
		if looked != nil && (end == nil || end.follows(*looked, q.Sort)) {
			end = looked
		}
		for _, hit := range found {
			hit.source = i
			hits = insert(hits, hit, q.Sort, limit+1)
		}
	}
	if end != nil {
		hits = slices.DeleteFunc(hits, func(h Hit) bool { return h.follows(*end, q.Sort) })
	}
	page := &Page{Next: end}
	if len(hits) > limit {
		hits = hits[:limit]
		page.Next = &hits[limit-1].Cursor
	}
	for _, hit := range hits {
		d, err := sources[hit.source].Document(hit.Number)
		if err != nil {
			return nil, err
		}
		page.Documents = append(page.Documents, d)
	}
	return page, nil
}

// before reports whether the value a comes before b in an order.
func before(a, b int64, by query.Sort) bool { return a < b && by.Oldest || a > b && !by.Oldest }

// bestFirst returns the positions of the sources, those first that may have the first documents.
func bestFirst(by query.Sort, sources []Source) []int {
	order, first := make([]int, len(sources)), make([]int64, len(sources))
	for i, s := range sources {
		low, high := s.Span(by)
		order[i], first[i] = i, high
		if by.Oldest {
			first[i] = low
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		if by.Oldest {
			return cmp.Compare(first[a], first[b])
		}
		return cmp.Compare(first[b], first[a])
	})
	return order
}

// insert adds a hit to a sorted list of at most limit.
func insert(hits []Hit, hit Hit, by query.Sort, limit int) []Hit {
	i := sort.Search(len(hits), func(i int) bool { return hits[i].follows(hit.Cursor, by) })
	if i == limit || i > 0 && hits[i-1].Cursor == hit.Cursor {
		return hits
	}
	if len(hits) == limit {
		hits = hits[:limit-1]
	}
	return slices.Insert(hits, i, hit)
}

// sortRange returns the smallest and the largest number in the column of an order between two cursors.
func sortRange(by query.Sort, from, to *Cursor) (low, high int64) {
	low, high = -absent, absent
	if !by.Oldest {
		from, to = to, from
	}
	if from != nil {
		low = by.Lowest(from.Value)
	}
	if to != nil {
		high = by.Ceil(to.Value)
	}
	return low, high
}
