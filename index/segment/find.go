package segment

import (
	"bytes"
	"slices"
	"sort"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
)

const (
	manyChunks = 8  // of terms, from which on it is cheaper to read fewDocs documents
	fewDocs    = 32 // documents
	manyIDs    = 256
)

// add adds the documents to set that match a condition. Of documents that are not in within it
// adds any.
func (r *reader) add(set *bitmap, x query.Expr, within *bitmap) {
	switch x := x.(type) {
	case query.And:
		all := r.take()
		*all = *within
		sorted := slices.SortedStableFunc(slices.Values(x), func(a, b query.Expr) int { return cost(a) - cost(b) })
		for _, y := range sorted {
			if all.empty() {
				break
			}
			matching := r.take()
			r.add(matching, y, all)
			all.and(matching)
			r.put(matching)
		}
		set.or(all)
		r.put(all)
	case query.Or:
		for _, y := range x {
			r.add(set, y, within)
		}
	case query.Not:
		matching := r.take()
		r.add(matching, x.Expr, within)
		matching.not()
		set.or(matching)
		r.put(matching)
	case *query.Term:
		r.addTerm(set, x, within)
	}
}

// cost returns a rank of conditions. Those of an And are evaluated in its order: conditions that read
// less and exclude more come first.
func cost(x query.Expr) int {
	most := 0
	switch x := x.(type) {
	case query.And:
		for _, y := range x {
			most = max(most, cost(y))
		}
	case query.Or:
		for _, y := range x {
			most = max(most, cost(y), 1)
		}
	case query.Not:
		return max(cost(x.Expr), 1)
	case *query.Term:
		for _, v := range x.Values {
			switch {
			case v.Prefix:
				most = 3
			case v.Text == "":
				most = max(most, 2)
			}
		}
	}
	return most
}

func (r *reader) addTerm(set *bitmap, t *query.Term, within *bitmap) {
	switch t.Field {
	case query.FieldCreated, query.FieldStarted, query.FieldEnded, query.FieldTook, query.FieldPriority, query.FieldAttempts, query.FieldDispatches:
		r.addRanges(set, t, t.Field, within)
		return
	case query.FieldSince:
		for _, f := range []query.Field{query.FieldEnded, query.FieldStarted, query.FieldCreated} {
			r.addRanges(set, t, f, within)
		}
		return
	}
	if r.broad(t) && within.count() <= fewDocs {
		q := &query.Query{Where: t}
		for n := range within.all(false) {
			if d := r.document(n); d != nil && q.Match(d) {
				set.add(n)
			}
		}
		return
	}
	for _, v := range t.Values {
		switch t.Field {
		case query.FieldAny:
			r.addPrefix(set, v, within)
			for _, f := range []query.Field{query.FieldKey, query.FieldLimitKey} {
				r.addText(set, f, "", v)
			}
			r.addWords(set, v)
		case query.FieldID:
			r.addPrefix(set, v, within)
		case query.FieldKey:
			r.addText(set, query.FieldKey, "", v)
			r.addText(set, query.FieldLimitKey, "", v)
		case query.FieldLabel:
			r.addText(set, query.FieldMeta, t.Name, v)
			r.addText(set, query.FieldParams, t.Name, v)
		case query.FieldError:
			r.addText(set, t.Field, "", query.Value{Text: query.Fold(v.Text), Prefix: v.Prefix})
		case query.FieldText:
			r.addWords(set, v)
		default:
			r.addText(set, t.Field, t.Name, v)
		}
	}
}

func (r *reader) addRanges(set *bitmap, t *query.Term, f query.Field, within *bitmap) {
	for _, v := range t.Values {
		r.addRange(set, slices.Index(columnFields, f), v.From, v.To-1, within)
	}
}

// broad reports whether many chunks have terms that begin with a value of t.
func (r *reader) broad(t *query.Term) bool {
	n := 0
	for _, v := range t.Values {
		if !v.Prefix {
			continue
		}
		fields := []query.Field{t.Field}
		switch t.Field {
		case query.FieldAny:
			fields = []query.Field{query.FieldKey, query.FieldLimitKey, query.FieldText}
		case query.FieldKey:
			fields = append(fields, query.FieldLimitKey)
		case query.FieldLabel:
			fields = []query.Field{query.FieldMeta, query.FieldParams}
		}
		for _, f := range fields {
			from, to := r.termChunks(string(appendTerm(nil, f, t.Name, v.Text)))
			n += to - from
		}
	}
	return n > manyChunks
}

func (r *reader) addText(set *bitmap, f query.Field, name string, v query.Value) {
	r.addTerms(set, string(appendTerm(nil, f, name, v.Text)), v.Prefix)
}

// addWords adds the documents whose error's message has all words of v.
func (r *reader) addWords(set *bitmap, v query.Value) {
	words := query.Words(v.Text)
	if len(words) == 0 {
		if v.Prefix && v.Text == "" {
			r.addText(set, query.FieldText, "", v)
		}
		return
	}
	all := r.everything()
	for i, word := range words {
		matching := r.take()
		r.addText(matching, query.FieldText, "", query.Value{Text: word, Prefix: v.Prefix && i == len(words)-1})
		all.and(matching)
		r.put(matching)
	}
	set.or(all)
	r.put(all)
}

// addPrefix adds the documents whose id is or begins with the text of v.
func (r *reader) addPrefix(set *bitmap, v query.Value, within *bitmap) {
	text := query.Fold(v.Text)
	const zeros, ones = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
	if len(text) > len(zeros) || len(text) < len(zeros) && !v.Prefix {
		return
	}
	low, err := job.ParseID(text + zeros[len(text):])
	if err != nil {
		return
	}
	high, err := job.ParseID(text + ones[len(text):])
	if err == nil {
		r.addIDs(set, low, high, within)
	}
}

// addIDs adds the documents with ids from low to high, which is included. Of documents that are
// not in within it adds any.
func (r *reader) addIDs(set *bitmap, low, high job.ID, within *bitmap) {
	from := r.position(func(id job.ID) bool { return bytes.Compare(id[:], low[:]) >= 0 })
	to := r.position(func(id job.ID) bool { return bytes.Compare(id[:], high[:]) > 0 })
	if to-from > manyIDs && within.count() > manyIDs {
		for n := range r.count {
			if id := r.id(uint16(n)); bytes.Compare(id[:], low[:]) >= 0 && bytes.Compare(id[:], high[:]) <= 0 {
				set.add(uint16(n))
			}
		}
		return
	}
	if to-from > manyIDs {
		for n := range within.all(false) {
			if id := r.id(n); bytes.Compare(id[:], low[:]) >= 0 && bytes.Compare(id[:], high[:]) <= 0 {
				set.add(n)
			}
		}
		return
	}
	for i := from; i < to && r.err == nil; i++ {
		set.add(r.inOrder(i))
	}
}

// position returns the number of documents, in the order of ids, before the first one that after
// reports true for.
func (r *reader) position(after func(job.ID) bool) int {
	part := sort.Search(len(r.Segment.order), func(i int) bool { return after(r.Segment.order[i].first) })
	if part == 0 {
		return 0
	}
	start := (part - 1) * orderChunk
	return start + sort.Search(min(orderChunk, r.count-start), func(i int) bool { return after(r.id(r.inOrder(start + i))) })
}

// inOrder returns the i-th document in the order of ids.
func (r *reader) inOrder(i int) uint16 {
	r.order = r.read(r.Segment.order[i/orderChunk].chunk, r.order)
	if r.err != nil {
		return 0
	}
	at := i % orderChunk * 2
	return uint16(r.order[at]) | uint16(r.order[at+1])<<8
}

// Snapshot is a segment at one moment: it also has the documents that are deleted later.
type Snapshot struct {
	*Segment
	deleted *bitmap
}

// Snapshot returns the segment as it is now.
func (s *Segment) Snapshot() Snapshot { return Snapshot{s, s.deleted.Load()} }

// Find implements [Source].
func (s *Segment) Find(q *query.Query, from, to *Cursor, limit int) (hits []Hit, last *Cursor, err error) {
	return s.Snapshot().Find(q, from, to, limit)
}

// Find implements [Source].
func (s Snapshot) Find(q *query.Query, from, to *Cursor, limit int) (hits []Hit, last *Cursor, err error) {
	r := newReader(s.Segment)
	defer r.release()
	within := r.everything()
	defer r.put(within)
	within.andNot(s.deleted)
	column := sortColumn(q.Sort)
	if low, high := sortRange(q.Sort, from, to); low > -absent || high < absent {
		inRange := r.take()
		r.addRange(inRange, column, low, high, within)
		within.and(inRange)
		r.put(inRange)
	}
	if q.Where != nil && !within.empty() {
		matching := r.take()
		r.add(matching, q.Where, within)
		within.and(matching)
		r.put(matching)
	}
	for n := range within.all(!q.Sort.Oldest) {
		value := q.Sort.Floor(r.number(column, n))
		if len(hits) == limit {
			if !q.Sort.ByEnd {
				break // the documents are in this order
			}
			if last := hits[limit-1].Value; q.Sort.Oldest && value > last || !q.Sort.Oldest && value < last {
				continue
			}
		}
		if hit := (Hit{Cursor: Cursor{value, r.id(n)}, Number: int(n)}); from == nil || hit.follows(*from, q.Sort) {
			hits = insert(hits, hit, q.Sort, limit)
		}
		if r.err != nil {
			break
		}
	}
	if r.err != nil {
		return nil, nil, r.err
	}
	return hits, nil, nil
}
