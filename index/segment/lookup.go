package segment

import (
	"bytes"
	"cmp"
	"sort"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Compare orders cursors by their values and ids, as [cmp.Compare] does.
func (c Cursor) Compare(o Cursor) int {
	return cmp.Or(cmp.Compare(c.Value, o.Value), bytes.Compare(c.ID[:], o.ID[:]))
}

// Lookup calls found with the number of each of some documents that the segment has, and with its
// position in places. Places are the times of creation and ids of documents, in ascending order.
func (s *Segment) Lookup(places []Cursor, found func(number int)) error {
	return s.lookup(places, func(_ *reader, number int) { found(number) })
}

// LookupDocuments is [Segment.Lookup], but calls found with the documents.
func (s *Segment) LookupDocuments(places []Cursor, found func(*job.Document)) error {
	return s.lookup(places, func(r *reader, number int) {
		if d := r.document(uint16(number)); d != nil {
			found(d)
		}
	})
}

// lookup calls found for each of some documents that the segment has.
func (s *Segment) lookup(places []Cursor, found func(r *reader, number int)) error {
	r := newReader(s)
	defer r.release()
	deleted := s.deleted.Load()
	n := 0
	for _, at := range places {
		n += sort.Search(s.count-n, func(k int) bool { return r.number(createdColumn, uint16(n+k)) >= at.Value })
		for k := n; k < s.count && r.number(createdColumn, uint16(k)) == at.Value; k++ {
			if r.id(uint16(k)) == at.ID && !deleted.contains(uint16(k)) && r.err == nil {
				found(r, k)
				break
			}
		}
		if r.err != nil {
			return r.err
		}
	}
	return nil
}

// Documents calls yield with the documents that are not deleted and their numbers, in the order of
// their creation, until yield returns false.
func (s *Segment) Documents(yield func(number int, d *job.Document) bool) error {
	r := newReader(s)
	defer r.release()
	deleted := s.deleted.Load()
	for n := range s.count {
		if deleted.contains(uint16(n)) {
			continue
		}
		d := r.document(uint16(n))
		if r.err != nil {
			return r.err
		}
		if !yield(n, d) {
			return nil
		}
	}
	return nil
}

// Places calls yield with the places of the documents that are not deleted, in their order, and
// with their numbers.
func (s *Segment) Places(yield func(number int, at Cursor)) error {
	r := newReader(s)
	defer r.release()
	deleted := s.deleted.Load()
	for n := range s.count {
		if deleted.contains(uint16(n)) {
			continue
		}
		at := Cursor{r.number(createdColumn, uint16(n)), r.id(uint16(n))}
		if r.err != nil {
			return r.err
		}
		yield(n, at)
	}
	return nil
}

// DeleteNumbers deletes the documents with some numbers. The file is not changed: see
// [Segment.Deleted].
func (s *Segment) DeleteNumbers(numbers []int) {
	s.deleting.Lock()
	defer s.deleting.Unlock()
	deleted := *s.deleted.Load()
	for _, n := range numbers {
		deleted.add(uint16(n))
	}
	s.deleted.Store(&deleted)
}
