package segment

import (
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
)

// columnFields are the fields that have a column of numbers.
var columnFields = []query.Field{
	query.FieldCreated, query.FieldStarted, query.FieldEnded, query.FieldTook, query.FieldPriority, query.FieldAttempts, query.FieldDispatches,
}

// Positions in columnFields.
const (
	createdColumn = 0
	endedColumn   = 2
)

// columnChunk is the number of documents of a chunk of a column.
const columnChunk = 4096

// absent is the number of a document that has none. No range of a query has it, and by the time
// of their end it sorts jobs that have not ended as [query.Sort.Value] does.
const absent = math.MaxInt64

// number returns the number of a document in the column of a field, or absent.
func number(f query.Field, d *job.Document) int64 {
	switch {
	case f == query.FieldCreated:
		return d.Created.UnixNano()
	case f == query.FieldStarted && !d.Started.IsZero():
		return d.Started.UnixNano()
	case f == query.FieldEnded && !d.Ended.IsZero():
		return d.Ended.UnixNano()
	case f == query.FieldTook:
		if took, ok := query.Took(d); ok {
			return took
		}
	case f == query.FieldPriority:
		return int64(d.Priority)
	case f == query.FieldAttempts:
		return int64(d.Attempts)
	case f == query.FieldDispatches:
		return int64(d.Dispatches)
	}
	return absent
}

// columnPart is what the directory has of a chunk of a column: the smallest and the largest
// number, without absent ones, and whether there are absent ones.
type columnPart struct {
	chunk
	low, high int64
	width     int // bytes of a number: the difference to low plus 1, or 0 if it is absent
	gaps      bool
}

// appendColumn returns the chunk of some numbers, and what the directory has of it.
func appendColumn(b []byte, numbers []int64) ([]byte, columnPart) {
	part := columnPart{low: math.MaxInt64, high: math.MinInt64}
	for _, n := range numbers {
		if n == absent {
			part.gaps = true
			continue
		}
		part.low, part.high = min(part.low, n), max(part.high, n)
	}
	switch {
	case part.low > part.high: // all are absent
		return b, part
	case part.low == part.high && !part.gaps:
		return b, part
	}
	part.width = (bits.Len64(uint64(part.high-part.low)+1) + 7) / 8
	var buffer [8]byte
	for _, n := range numbers {
		code := uint64(0)
		if n != absent {
			code = uint64(n-part.low) + 1
		}
		binary.LittleEndian.PutUint64(buffer[:], code)
		b = append(b, buffer[:part.width]...)
	}
	return b, part
}

// value returns the i-th number of a chunk that has been read.
func (p *columnPart) value(data []byte, i int) int64 {
	if p.width == 0 {
		if p.gaps {
			return absent
		}
		return p.low
	}
	var buffer [8]byte
	copy(buffer[:], data[i*p.width:(i+1)*p.width])
	if code := binary.LittleEndian.Uint64(buffer[:]); code > 0 {
		return p.low + int64(code-1)
	}
	return absent
}

// last returns the largest number of the chunk, which may be absent.
func (p *columnPart) last() int64 {
	if p.gaps {
		return absent
	}
	return p.high
}

// addRange adds the documents to set whose number in a column is between from and last, which
// are included. Of documents that are not in within it adds any.
func (s *reader) addRange(set *bitmap, column int, from, last int64, within *bitmap) {
	for i := range s.columns[column] {
		p := &s.columns[column][i]
		start, end := i*columnChunk, min((i+1)*columnChunk, s.count)
		words := within[start/64 : start/64+columnChunk/64]
		n := countWords(words)
		switch {
		case n == 0 || p.last() < from || min(p.low, p.last()) > last:
			continue
		case p.low >= from && p.last() <= last:
			set.addRange(start, end)
			continue
		}
		data := s.column(column, i)
		if s.err != nil {
			return
		}
		if n < columnChunk/16 {
			for w, word := range words {
				for ; word != 0; word &= word - 1 {
					k := w*64 + bits.TrailingZeros64(word)
					if v := p.value(data, k); start+k < end && from <= v && v <= last {
						set.add(uint16(start + k))
					}
				}
			}
			continue
		}
		for k := range end - start {
			if v := p.value(data, k); from <= v && v <= last {
				set.add(uint16(start + k))
			}
		}
	}
}
