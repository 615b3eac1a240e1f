package ledger

import (
	"encoding/binary"
	"errors"
	"io"
	"iter"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// codec encodes or decodes the state in a compact binary form. The same methods
// do both: each writes the values that its arguments point to, or reads them.
// After an error it writes nothing more and reads only zero values, so that
// loops end.
type codec struct {
	buf []byte // encoder: not written yet; decoder: read, but not decoded yet

	w       io.Writer
	numbers map[string]uint64 // number of each name written so far

	r        io.Reader // nil in an encoder
	block    []byte    // the memory of buf
	names    []string  // names read so far
	executor executor  // the one that is being read

	err error
}

func newEncoder(w io.Writer) *codec {
	return &codec{w: w, buf: make([]byte, 0, 2*flushSize), numbers: make(map[string]uint64)}
}

// flushSize is how many bytes an encoder collects before it writes them.
const flushSize = 64 << 10

func (c *codec) flush() error {
	if c.err == nil {
		_, c.err = c.w.Write(c.buf)
	}
	c.buf = c.buf[:0]
	return c.err
}

func newDecoder(r io.Reader) *codec { return &codec{r: r, block: make([]byte, 64<<10)} }

func (c *codec) decoding() bool { return c.r != nil }

// errCorrupt is returned for a snapshot that no encoder can have written.
var errCorrupt = errors.New("ledger snapshot is corrupt")

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

// fields encodes or decodes the values that the pointers point to. Unsigned
// numbers are varints; signed ones, times and durations are in zigzag encoding.
func (c *codec) fields(pointers ...any) {
	for _, p := range pointers {
		switch p := p.(type) {
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

func (c *codec) raw(b []byte) {
	switch {
	case !c.decoding():
		c.buf = append(c.buf, b...)
	case c.err == nil:
		n := copy(b, c.buf)
		if c.buf = c.buf[n:]; n < len(b) {
			_, c.err = io.ReadFull(c.r, b[n:])
		}
	}
}

func (c *codec) uint(p *uint64) {
	switch {
	case !c.decoding():
		c.buf = binary.AppendUvarint(c.buf, *p)
	case c.err != nil:
		*p = 0
	default:
		*p = c.readUint()
	}
}

func (c *codec) readUint() uint64 {
	v, n := binary.Uvarint(c.buf)
	for n == 0 && c.err == nil { // the rest has not been read yet
		rest := copy(c.block, c.buf)
		var more int
		more, c.err = io.ReadAtLeast(c.r, c.block[rest:], 1)
		c.buf = c.block[:rest+more]
		v, n = binary.Uvarint(c.buf)
	}
	if n <= 0 {
		c.fail(errCorrupt)
		return 0
	}
	c.buf = c.buf[n:]
	return v
}

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

func (c *codec) bytes(p *[]byte) {
	n := uint64(len(*p))
	if c.uint(&n); !c.decoding() {
		c.raw(*p)
		return
	}
	if n > job.MaxBody {
		c.fail(errCorrupt)
	}
	var b []byte
	for uint64(len(b)) < n && c.err == nil {
		at := len(b)
		b = append(b, make([]byte, min(n-uint64(at), maxChunk))...)
		c.raw(b[at:])
	}
	if c.err == nil {
		*p = b
	}
}

func (c *codec) text(p *string) {
	if c.decoding() {
		var b []byte
		c.bytes(&b)
		*p = string(b)
		return
	}
	n := uint64(len(*p))
	c.uint(&n)
	c.buf = append(c.buf, *p...)
}

func (c *codec) name(p *string) {
	n := c.numbers[*p] // 0: not written yet
	c.uint(&n)
	switch {
	case n == 0 && c.decoding():
		c.text(p)
		c.names = append(c.names, *p)
	case n == 0:
		c.numbers[*p] = uint64(len(c.numbers) + 1)
		c.text(p)
	case c.decoding() && n > uint64(len(c.names)):
		c.fail(errCorrupt)
	case c.decoding():
		*p = c.names[n-1]
	}
}

// optional encodes or decodes whether there is a value, and returns that. The
// caller encodes or decodes the value next.
func optional[T any](c *codec, p **T) bool {
	present := *p != nil
	if c.bool(&present); present && c.decoding() {
		*p = new(T)
	}
	return present
}

// each encodes the n values of stored, or decodes new ones: it calls code with
// each.
func each[T any](c *codec, n int, stored iter.Seq[*T], code func(*T)) {
	count := uint64(n)
	if c.uint(&count); !c.decoding() {
		stored(func(v *T) bool {
			code(v)
			return c.err == nil
		})
		return
	}
	for ; count > 0 && c.err == nil; count-- {
		code(new(T))
	}
}

// list encodes or decodes a list: it calls code with each element.
func list[T any](c *codec, s *[]T, code func(*T)) {
	n := uint64(len(*s))
	c.uint(&n)
	for i := uint64(0); i < n && c.err == nil; i++ {
		if c.decoding() {
			*s = append(*s, *new(T))
		}
		code(&(*s)[i])
	}
}
