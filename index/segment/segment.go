package segment

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/s2"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Segment is a segment that is open. Its methods may be called by several goroutines.
type Segment struct {
	file    io.ReaderAt
	count   int
	bodies  []chunk
	columns [][]columnPart // of each of columnFields
	ids     []chunk
	order   []orderPart
	terms   []termChunk
	spans   []union // of spanChunks of terms each

	deleting crash.Mutex // held to replace deleted
	deleted  atomic.Pointer[bitmap]
}

// orderPart is what the directory has of a chunk of documents in the order of their ids.
type orderPart struct {
	chunk
	first job.ID
}

const tailSize = 8 + 8 + len(magic) + 4

// Open returns the segment in a file of size bytes, which must stay open.
func Open(file io.ReaderAt, size int64) (*Segment, error) {
	if size < int64(len(magic)+tailSize) {
		return nil, fmt.Errorf("a file of %d bytes: %w", size, ErrDamaged)
	}
	tail, err := readChunk(file, chunk{size - int64(tailSize), int64(tailSize) - 4}, nil)
	if err != nil {
		return nil, err
	}
	at := chunk{int64(binary.LittleEndian.Uint64(tail)), int64(binary.LittleEndian.Uint64(tail[8:]))}
	if string(tail[16:]) != magic || at.offset < 0 || at.size < 0 || at.offset+at.size+4+int64(tailSize) != size {
		return nil, fmt.Errorf("the end of the file: %w", ErrDamaged)
	}
	directory, err := readChunk(file, at, nil)
	if err != nil {
		return nil, err
	}
	s := &Segment{file: file}
	if err := s.decode(&decoder{data: directory}, size); err != nil {
		return nil, fmt.Errorf("directory: %w", err)
	}
	s.deleted.Store(&bitmap{})
	return s, nil
}

// decode reads the directory.
func (s *Segment) decode(d *decoder, size int64) error {
	count := d.uvarint()
	if count == 0 || count > MaxDocuments {
		return ErrDamaged
	}
	s.count = int(count)
	chunks := func(n int) int { return (s.count + n - 1) / n }
	at := func() chunk {
		c := chunk{int64(d.uvarint()), int64(d.uvarint())}
		if c.offset < 0 || c.size < 0 || c.offset > size || c.size > size-c.offset {
			d.fail()
		}
		return c
	}
	unionAt := func() union {
		u := union{at(), int(d.uint32())}
		if u.count > MaxDocuments || u.count > 0 && u.count <= maxInline {
			d.fail()
		}
		return u
	}
	for range chunks(documentChunk) {
		s.bodies = append(s.bodies, at())
	}
	for range columnFields {
		parts := make([]columnPart, chunks(columnChunk))
		for i := range parts {
			p := &parts[i]
			p.chunk = at()
			if head := d.bytes(2); d.err == nil {
				p.width, p.gaps = int(head[0]), head[1] != 0
			}
			p.low, p.high = d.varint(), d.varint()
			if n := min(columnChunk, s.count-i*columnChunk); p.width > 8 || p.size != int64(n*p.width) {
				d.fail()
			}
		}
		s.columns = append(s.columns, parts)
	}
	for i := range chunks(idChunk) {
		c := at()
		if c.size != int64(min(idChunk, s.count-i*idChunk)*len(job.ID{})) {
			d.fail()
		}
		s.ids = append(s.ids, c)
	}
	for i := range chunks(orderChunk) {
		p := orderPart{chunk: at()}
		if p.size != int64(2*min(orderChunk, s.count-i*orderChunk)) {
			d.fail()
		}
		copy(p.first[:], d.bytes(uint64(len(p.first))))
		s.order = append(s.order, p)
	}
	for range d.count() {
		s.terms = append(s.terms, termChunk{at(), d.text(), unionAt()})
	}
	for range len(s.terms) / spanChunks {
		s.spans = append(s.spans, unionAt())
	}
	if len(d.data) > 0 {
		d.fail()
	}
	return d.err
}

// Count returns the number of documents, without those that were deleted.
func (s *Segment) Count() int { return s.count - s.deleted.Load().count() }

// Span returns the smallest and the largest [query.Sort.Value] of the documents.
func (s *Segment) Span(by query.Sort) (low, high int64) {
	low, high = absent, -absent
	for i := range s.columns[sortColumn(by)] {
		p := &s.columns[sortColumn(by)][i]
		low, high = min(low, by.Floor(min(p.low, p.last()))), max(high, by.Floor(p.last()))
	}
	return low, high
}

func sortColumn(by query.Sort) int {
	if by.ByEnd {
		return endedColumn
	}
	return createdColumn
}

// Deleted returns the set of documents that were deleted, to be stored beside the file.
func (s *Segment) Deleted() []byte {
	b := make([]byte, 0, bitmapSize)
	for _, w := range s.deleted.Load() {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// SetDeleted deletes the documents of a set that [Segment.Deleted] returned.
func (s *Segment) SetDeleted(set []byte) error {
	if len(set) != bitmapSize {
		return fmt.Errorf("a set of deleted documents of %d bytes: %w", len(set), ErrDamaged)
	}
	var deleted bitmap
	for i := range deleted {
		deleted[i] = binary.LittleEndian.Uint64(set[i*8:])
	}
	s.deleted.Store(&deleted)
	return nil
}

// Document returns document n, which must be less than the number of documents written.
func (s *Segment) Document(n int) (*job.Document, error) {
	r := newReader(s)
	defer r.release()
	d := r.document(uint16(n))
	return d, r.err
}

// reader reads a segment for one query. After an error it reads nothing.
type reader struct {
	*Segment
	err                         error
	buffer, posting, ids, order []byte
	plain, packed               []byte
	key                         []byte
	numbers                     [][]byte // by column and chunk, of length 0 if not read
	idsAt, plainAt              int      // which chunk ids and plain hold; -1: none
	free                        []*bitmap
}

var readers = sync.Pool{New: func() any {
	return &reader{numbers: make([][]byte, len(columnFields)*MaxDocuments/columnChunk)}
}}

func newReader(s *Segment) *reader {
	r := readers.Get().(*reader)
	r.Segment, r.err, r.idsAt, r.plainAt = s, nil, -1, -1
	for i := range r.numbers {
		r.numbers[i] = r.numbers[i][:0]
	}
	return r
}

func (r *reader) release() {
	r.Segment = nil
	readers.Put(r)
}

// take returns an empty set, which put takes back.
func (r *reader) take() *bitmap {
	n := len(r.free)
	if n == 0 {
		return new(bitmap)
	}
	set := r.free[n-1]
	r.free = r.free[:n-1]
	*set = bitmap{}
	return set
}

func (r *reader) put(set *bitmap) { r.free = append(r.free, set) }

// everything returns the set of all documents.
func (r *reader) everything() *bitmap {
	set := r.take()
	set.addRange(0, r.count)
	return set
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// read returns the content of a chunk, in a buffer if that is large enough.
func (r *reader) read(at chunk, buffer []byte) []byte {
	if r.err != nil {
		return nil
	}
	data, err := readChunk(r.file, at, buffer)
	r.fail(err)
	return data
}

// column returns the i-th chunk of a column.
func (r *reader) column(column, i int) []byte {
	at := column*MaxDocuments/columnChunk + i
	if p := r.columns[column][i]; len(r.numbers[at]) == 0 && p.width > 0 {
		r.numbers[at] = r.read(p.chunk, r.numbers[at])
	}
	return r.numbers[at]
}

// number returns the number of document n in a column.
func (r *reader) number(column int, n uint16) int64 {
	i := int(n) / columnChunk
	data := r.column(column, i)
	if r.err != nil {
		return absent
	}
	return r.columns[column][i].value(data, int(n)%columnChunk)
}

// id returns the id of document n.
func (r *reader) id(n uint16) job.ID {
	if i := int(n) / idChunk; r.idsAt != i {
		r.ids, r.idsAt = r.read(r.Segment.ids[i], r.ids), i
	}
	if r.err != nil {
		return job.ID{}
	}
	return job.ID(r.ids[int(n)%idChunk*16:][:16])
}

// document returns document n, nil after an error.
func (r *reader) document(n uint16) *job.Document {
	id, created := r.id(n), r.number(createdColumn, n)
	if i := int(n) / documentChunk; r.plainAt != i && r.err == nil {
		r.packed = r.read(r.bodies[i], r.packed)
		if r.err == nil {
			var err error
			if r.plain, err = s2.Decode(r.plain[:cap(r.plain)], r.packed); err != nil {
				r.fail(ErrDamaged)
			}
			r.plainAt = i
		}
	}
	if r.err != nil {
		return nil
	}
	d := &decoder{data: r.plain}
	start, size := uint64(0), uint64(0)
	in := int(n) / documentChunk * documentChunk
	for i := in; i < min(in+documentChunk, r.count); i++ {
		length := d.uvarint()
		if i < int(n) {
			start += length
		} else if i == int(n) {
			size = length
		}
	}
	d.bytes(start)
	doc, err := parseBody(id, created, d.bytes(size))
	if d.err != nil {
		err = d.err
	}
	r.fail(err)
	return doc
}
