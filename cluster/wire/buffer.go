package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// version is the first byte of every message.
const version = 2

// ErrMalformed: the bytes are no message of this kind.
var ErrMalformed = errors.New("message between nodes is malformed")

// VersionError: the message was written by a node of another version.
type VersionError struct{ Got byte }

func (e *VersionError) Error() string {
	return fmt.Sprintf("message between nodes has version %d; this node speaks %d", e.Got, version)
}

// zeroTime stands for time.Time{}, whose nanoseconds do not fit.
const zeroTime = math.MinInt64

func putUint(b []byte, v uint64) []byte { return binary.AppendUvarint(b, v) }
func putInt(b []byte, v int64) []byte   { return binary.AppendVarint(b, v) }

func putString(b []byte, s string) []byte { return append(putUint(b, uint64(len(s))), s...) }

// putMaybe keeps nil and empty apart.
func putMaybe(b, v []byte) []byte {
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

// reader takes a message apart. After the first fault every read gives zero,
// so that only the end has to be checked.
type reader struct {
	b   []byte
	err error
}

func open(b []byte) *reader {
	if len(b) == 0 {
		return &reader{err: ErrMalformed}
	}
	if b[0] != version {
		return &reader{err: &VersionError{b[0]}}
	}
	return &reader{b: b[1:]}
}

func (r *reader) fail() {
	if r.err == nil {
		r.err = ErrMalformed
	}
	r.b = nil
}

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

// take cuts n bytes off, sharing the message.
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

func (r *reader) maybe() []byte {
	n := r.uint()
	if n == 0 {
		return nil
	}
	return r.take(n - 1)
}

func (r *reader) string() string { return string(r.bytes()) }

// strings reads a list; an empty one is nil.
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

// same reads a text that is mostly the one before: repeating a queue's name
// for each of a thousand assignments costs nothing.
func (r *reader) same(before string) string {
	b := r.bytes()
	if string(b) == before {
		return before
	}
	return string(b)
}

// count reads how many items follow, each of at least size bytes: no more are
// believed than the rest could hold.
func (r *reader) count(size int) int {
	n := r.uint()
	if n > uint64(len(r.b)/size) {
		r.fail()
		return 0
	}
	return int(n)
}
