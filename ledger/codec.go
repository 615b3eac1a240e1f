package ledger

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/tidwall/btree"

	"github.com/yardmaster-dev/yardmaster/job"
)

// codec encodes or decodes the state in a compact binary form. The same methods
// do both: each writes the values that its arguments point to, or reads them.
// After an error it writes nothing more and reads only zero values, so that
// loops end.
type codec struct {
	w       io.Writer         // nil in a decoder
	buf     []byte            // encoder: not written yet
	numbers map[string]uint64 // encoder: number of each name written so far

	r     *bufio.Reader // nil in an encoder
	names []string      // decoder: names read so far

	err error
}

const flushSize = 64 << 10 // bytes that an encoder collects before it writes them

func newEncoder(w io.Writer) *codec {
	return &codec{w: w, buf: make([]byte, 0, 2*flushSize), numbers: make(map[string]uint64)}
}

func newDecoder(r io.Reader) *codec { return &codec{r: bufio.NewReaderSize(r, 64<<10)} }

// flush writes what an encoder has not written yet, and returns its first
// error.
func (c *codec) flush() error {
	if c.err == nil {
		_, c.err = c.w.Write(c.buf)
	}
	c.buf = c.buf[:0]
	return c.err
}

func (c *codec) decoding() bool { return c.r != nil }

// errCorrupt is returned for a snapshot that no encoder can have written.
var errCorrupt = errors.New("ledger snapshot is corrupt")

// fail records err, unless an earlier error is recorded.
func (c *codec) fail(err error) {
	if c.err == nil {
		c.err = err
	}
}

// name is a text that occurs in many records. It is written in full the first
// time, and as a number afterwards.
type name string

// unixTime is a time that may be the beginning of 1970; as a [time.Time], that
// would be read as the zero time.
type unixTime time.Time

// fields encodes or decodes the values that the pointers point to, in order. It
// panics for a pointer of a type that it does not know.
func (c *codec) fields(pointers ...any) {
	for _, pointer := range pointers {
		switch p := pointer.(type) {
		case *uint64:
			c.uint(p)
		case *uint32:
			v := uint64(*p)
			if c.uint(&v); c.decoding() {
				*p = uint32(v)
			}
		case *uint8:
			v := uint64(*p)
			if c.uint(&v); c.decoding() {
				*p = uint8(v)
			}
		case *int:
			v := uint64(*p)
			if c.uint(&v); c.decoding() {
				*p = int(v)
			}
		case *bool:
			c.bool(p)
		case *int64:
			c.int(p)
		case *time.Duration:
			c.int((*int64)(p))
		case *time.Time:
			c.time(p)
		case *unixTime:
			v := time.Time(*p).UnixNano()
			if c.int(&v); c.decoding() {
				*p = unixTime(time.Unix(0, v).UTC())
			}
		case *job.ID:
			c.raw(p[:])
		case *[]byte:
			c.bytes(p)
		case *string:
			c.text(p)
		case *name:
			c.name((*string)(p))
		default:
			panic("ledger: a field of this type cannot be encoded")
		}
	}
	if len(c.buf) >= flushSize {
		_ = c.flush()
	}
}

// raw writes all bytes of b, or reads as many as b has.
func (c *codec) raw(b []byte) {
	switch {
	case !c.decoding():
		c.buf = append(c.buf, b...)
	case c.err == nil:
		_, c.err = io.ReadFull(c.r, b)
	}
}

// uint encodes or decodes an unsigned number as a varint.
func (c *codec) uint(p *uint64) {
	if !c.decoding() {
		c.buf = binary.AppendUvarint(c.buf, *p)
		return
	}
	if c.err == nil {
		*p, c.err = binary.ReadUvarint(c.r)
	}
	if c.err != nil {
		*p = 0
	}
}

// int encodes or decodes a signed number as a varint in zigzag encoding.
func (c *codec) int(p *int64) {
	v := uint64(*p<<1) ^ uint64(*p>>63)
	if c.uint(&v); c.decoding() {
		*p = int64(v>>1) ^ -int64(v&1)
	}
}

// time encodes or decodes Unix nanoseconds; the zero time is 0.
func (c *codec) time(p *time.Time) {
	var v int64
	if !p.IsZero() {
		v = p.UnixNano()
	}
	if c.int(&v); c.decoding() && v != 0 {
		*p = time.Unix(0, v).UTC()
	}
}

// bool encodes or decodes false as 0 and true as 1.
func (c *codec) bool(p *bool) {
	var v uint64
	if *p {
		v = 1
	}
	if c.uint(&v); c.decoding() {
		*p = v == 1
	}
}

// maxChunk is how many bytes a length prefix may cause to be allocated before
// they are read.
const maxChunk = 1 << 20

// bytes encodes or decodes the length of a text and its bytes. A length above
// [job.MaxBody] fails with errCorrupt.
func (c *codec) bytes(p *[]byte) {
	length := uint64(len(*p))
	c.uint(&length)
	if !c.decoding() {
		c.raw(*p)
		return
	}
	if length > job.MaxBody {
		c.fail(errCorrupt)
	}
	var text []byte
	for uint64(len(text)) < length && c.err == nil {
		start := len(text)
		text = append(text, make([]byte, min(length-uint64(start), maxChunk))...)
		c.raw(text[start:])
	}
	if c.err == nil {
		*p = text
	}
}

// text is like bytes, for a string.
func (c *codec) text(p *string) {
	if c.decoding() {
		var text []byte
		c.bytes(&text)
		*p = string(text)
		return
	}
	length := uint64(len(*p))
	c.uint(&length)
	c.buf = append(c.buf, *p...)
}

// name encodes or decodes a [name]: the number 0 and the text at its first
// occurrence, and afterwards the number of that occurrence, from 1.
func (c *codec) name(p *string) {
	number := c.numbers[*p] // 0: not written yet
	c.uint(&number)
	switch {
	case number == 0 && c.decoding():
		c.text(p)
		c.names = append(c.names, *p)
	case number == 0:
		c.numbers[*p] = uint64(len(c.numbers) + 1)
		c.text(p)
	case c.decoding() && number > uint64(len(c.names)):
		c.fail(errCorrupt)
	case c.decoding():
		*p = c.names[number-1]
	}
}

// optional encodes or decodes whether there is a value, and returns that. The
// caller encodes or decodes the value next.
func optional[T any](c *codec, p **T) bool {
	present := *p != nil
	c.bool(&present)
	if present && c.decoding() {
		*p = new(T)
	}
	return present
}

// each encodes the count values of stored, or decodes as many as were encoded:
// it calls code with each value, or with new values to decode into.
func each[T any](c *codec, count int, stored iter.Seq[*T], code func(*T)) {
	eachIn(c, count, stored, func() *T { return new(T) }, code)
}

// eachIn is like each, and decodes into the values that space returns.
func eachIn[T any](c *codec, count int, stored iter.Seq[*T], space func() *T, code func(*T)) {
	n := uint64(count)
	c.uint(&n)
	if c.decoding() {
		for ; n > 0 && c.err == nil; n-- {
			code(space())
		}
		return
	}
	for v := range stored {
		if c.err != nil {
			return
		}
		code(v)
	}
}

// list encodes or decodes the length of a list and its elements: it calls code
// with each element.
func list[T any](c *codec, elements *[]T, code func(*T)) {
	length := uint64(len(*elements))
	c.uint(&length)
	for i := uint64(0); i < length && c.err == nil; i++ {
		if c.decoding() {
			*elements = append(*elements, *new(T))
		}
		code(&(*elements)[i])
	}
}

// values returns an iterator over the values of m in the order of its keys.
func values[V any](m *btree.Map[string, V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		m.Scan(func(_ string, v V) bool { return yield(v) })
	}
}
