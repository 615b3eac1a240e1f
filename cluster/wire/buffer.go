package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// version is the first byte of every message.
const version = 3

// ErrMalformed means that the bytes are not a message of the expected kind.
var ErrMalformed = errors.New("malformed message between nodes")

// VersionError means that the message was written by a node of another version.
type VersionError struct{ Got byte }

func (e *VersionError) Error() string {
	return fmt.Sprintf("message between nodes has version %d; this node uses %d", e.Got, version)
}

// zeroTime encodes time.Time{}, whose Unix nanoseconds do not fit into an int64.
const zeroTime = math.MinInt64

func putUint(b []byte, v uint64) []byte { return binary.AppendUvarint(b, v) }
func putInt(b []byte, v int64) []byte   { return binary.AppendVarint(b, v) }

func putString(b []byte, s string) []byte { return append(putUint(b, uint64(len(s))), s...) }

// putOptional encodes v so that nil and empty remain distinct.
func putOptional(b, v []byte) []byte {
	if v == nil {
		return append(b, 0)
	}
	return append(putUint(b, uint64(len(v))+1), v...)
}

func putStrings(b []byte, v []string) []byte {
	b = putUint(b, uint64(len(v)))
	for _, s := range v {
		b = putString(b, s)
	}
	return b
}

func putBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func putTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return putInt(b, zeroTime)
	}
	return putInt(b, t.UnixNano())
}

// reader parses a message. After the first error every method returns zero values,
// so that callers only check close's result.
type reader struct {
	b   []byte
	err error
}

// open checks the version and returns a reader of the fields.
func open(b []byte) *reader {
	if len(b) == 0 {
		return &reader{err: ErrMalformed}
	}
	if b[0] != version {
		return &reader{err: &VersionError{b[0]}}
	}
	return &reader{b: b[1:]}
}

// fail records that the message is malformed.
func (r *reader) fail() {
	if r.err == nil {
		r.err = ErrMalformed
	}
	r.b = nil
}

// close returns the first error, including bytes left over after the last field.
func (r *reader) close() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail()
	}
	return r.err
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) uint32() uint32 {
	v := r.uint()
	if v > math.MaxUint32 {
		r.fail()
		return 0
	}
	return uint32(v)
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) bool() bool {
	v := r.byte()
	if v > 1 {
		r.fail()
	}
	return v == 1
}

func (r *reader) time() time.Time {
	v := r.int()
	if v == zeroTime || r.err != nil {
		return time.Time{}
	}
	return time.Unix(0, v)
}

// take returns the next n bytes; they share the message's memory.
func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) bytes() []byte { return r.take(r.uint()) }

// optional reads what putOptional wrote.
func (r *reader) optional() []byte {
	n := r.uint()
	if n == 0 {
		return nil
	}
	return r.take(n - 1)
}

func (r *reader) string() string { return string(r.bytes()) }

// strings reads a list of strings; an empty one is nil.
func (r *reader) strings() []string {
	var v []string
	if n := r.count(1); n > 0 {
		v = make([]string, n)
	}
	for i := range v {
		v[i] = r.string()
	}
	return v
}

// repeated reads a string that is often equal to prev, and then returns prev:
// repeating a queue's name in each of a thousand assignments allocates nothing.
func (r *reader) repeated(prev string) string {
	b := r.bytes()
	if string(b) == prev {
		return prev
	}
	return string(b)
}

// count reads the number of items that follow, each of at least size bytes. It
// fails if the rest of the message cannot hold that many.
func (r *reader) count(size int) int {
	n := r.uint()
	if n > uint64(len(r.b)/size) {
		r.fail()
		return 0
	}
	return int(n)
}
