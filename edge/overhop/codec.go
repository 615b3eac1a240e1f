package overhop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and maps may be nested in a frame, including the
// envelope.
const MaxDepth = 128

// MaxValueDepth is how deep a value of a user may be nested that a client sends: a payload, a
// result, the details of a failure, or the data of a progress.
const MaxValueDepth = 120

// Raw is one valid MessagePack value: one that [Check] accepts or that this
// package has written. Its methods read the value in place, without copying or
// decoding the whole.
type Raw []byte

// Nil is the MessagePack nil.
var Nil = Raw{0xc0}

// EmptyMap is the MessagePack map without keys.
var EmptyMap = Raw{0x80}

// CodecError describes why bytes are not one allowed value.
type CodecError struct {
	Offset int // of the failure, in bytes
	Reason string
}

func (e *CodecError) Error() string {
	return fmt.Sprintf("not an allowed MessagePack value: %s at byte %d", e.Reason, e.Offset)
}

// orNil returns nil for an empty r.
func (r Raw) orNil() Raw {
	if len(r) == 0 {
		return Nil
	}
	return r
}

func (r Raw) append(b []byte) []byte { return append(b, r...) }

// Kind is the type of a value.
type Kind uint8

// The kinds of values that the protocol allows.
const (
	KindNil Kind = iota + 1
	KindBool
	KindInt
	KindStr
	KindBin
	KindArray
	KindMap
	KindNumber // a JSON number that is no int; never in a frame, see [FromJSON]
)

var kindNames = [...]string{"nothing", "nil", "bool", "int", "string", "binary", "array", "map", "number"}

func (k Kind) String() string { return kindNames[k] }

// Check reports whether b is exactly one allowed value: nil, a bool, an integer
// in the range of int64, UTF-8 text, binary, an array, or a map whose keys are
// UTF-8 text, nested at most [MaxDepth] deep, and nothing after it. It does not
// allocate, whatever sizes b announces. The error is a [*CodecError].
func Check(b []byte) error { return CheckDepth(b, MaxDepth) }

// CheckDepth is like [Check], with levels in place of [MaxDepth].
func CheckDepth(b []byte, levels int) error { return check(b, levels, false) }

// check is CheckDepth for a value that may contain numbers if numbers is set.
func check(b []byte, levels int, numbers bool) error {
	c := checker{b: b, levels: levels, numbers: numbers}
	if err := c.value(levels); err != nil {
		return err
	}
	if c.at != len(b) {
		return c.fail("trailing bytes")
	}
	return nil
}

type checker struct {
	b       []byte
	at      int
	levels  int  // how deep the value may be nested
	numbers bool // numbers are allowed
}

func (c *checker) fail(reason string) error { return &CodecError{Offset: c.at, Reason: reason} }

// value checks the value at the current offset and moves the offset to its end.
// Arrays and maps in it may be nested up to levels deep.
func (c *checker) value(levels int) error {
	h, ok := readHeader(c.b[c.at:])
	if !ok || h.kind == KindNumber && !c.numbers {
		return c.headerError()
	}
	switch h.kind {
	case KindArray, KindMap:
		return c.container(h, levels)
	case KindStr, KindBin, KindNumber:
		body := c.b[c.at+h.size:]
		if uint64(len(body)) < h.n {
			return c.fail("cut off")
		}
		if h.kind == KindStr && !utf8.Valid(body[:h.n]) {
			return c.fail("text is not UTF-8")
		}
		c.at += h.size + int(h.n)
	default:
		c.at += h.size
	}
	return nil
}

// container checks the array or map with the header h at the current offset. It
// counts as one of the levels.
func (c *checker) container(h header, levels int) error {
	if levels == 0 {
		return c.fail(fmt.Sprintf("nested more than %d deep", c.levels))
	}
	c.at += h.size
	for range h.n {
		if h.kind == KindMap {
			if c.at < len(c.b) && !startsText(c.b[c.at]) {
				return c.fail("map key is not text")
			}
			if err := c.value(levels); err != nil {
				return err
			}
		}
		if err := c.value(levels - 1); err != nil {
			return err
		}
	}
	return nil
}

// startsText reports whether first is the first byte of a text.
func startsText(first byte) bool { return first>>5 == 5 || first >= 0xd9 && first <= 0xdb }

// headerError returns the error for the value at the current offset, whose
// header [readHeader] does not accept: its type is not allowed, or it is cut
// off.
func (c *checker) headerError() error {
	if c.at >= len(c.b) {
		return c.fail("cut off")
	}
	first := c.b[c.at]
	isExtension := first >= 0xc7 && first <= 0xc9 || first >= 0xd4 && first <= 0xd8
	switch {
	case first == 0xca || first == 0xcb:
		return c.fail("float")
	case isExtension:
		return c.fail("extension type")
	case first == 0xc1:
		return c.fail("reserved byte 0xc1")
	case first == 0xcf && len(c.b)-c.at >= 9:
		return c.fail("integer beyond int64")
	}
	return c.fail("cut off")
}

// header is the beginning of a value: its type and, for a bool or an integer,
// its value.
type header struct {
	kind Kind
	size int    // bytes of the header itself
	n    uint64 // length of text or binary, number of items or pairs
	v    int64  // of an int or a bool
}

// readHeader reads the header of the MessagePack value at the beginning of b.
// ok is false if b is too short or the protocol does not allow the type. The
// first byte of short values holds the length or the integer itself; the other
// types are left to readWideHeader.
func readHeader(b []byte) (h header, ok bool) {
	if len(b) == 0 {
		return header{}, false
	}
	first := b[0]
	switch {
	case first < 0x80:
		return header{kind: KindInt, size: 1, v: int64(first)}, true
	case first < 0x90:
		return header{kind: KindMap, size: 1, n: uint64(first & 0x0f)}, true
	case first < 0xa0:
		return header{kind: KindArray, size: 1, n: uint64(first & 0x0f)}, true
	case first < 0xc0:
		return header{kind: KindStr, size: 1, n: uint64(first & 0x1f)}, true
	case first >= 0xe0:
		return header{kind: KindInt, size: 1, v: int64(int8(first))}, true
	}
	return readWideHeader(first, b[1:])
}

// wideHeaders describes the types 0xc0 to 0xdf: their kind, and how many bytes
// of length or value follow the first byte.
var wideHeaders = [32]struct {
	kind   Kind
	bytes  int
	signed bool
}{
	0xc0 - 0xc0: {kind: KindNil},
	0xc2 - 0xc0: {kind: KindBool}, 0xc3 - 0xc0: {kind: KindBool},
	0xc4 - 0xc0: {kind: KindBin, bytes: 1}, 0xc5 - 0xc0: {kind: KindBin, bytes: 2}, 0xc6 - 0xc0: {kind: KindBin, bytes: 4},
	numberCode - 0xc0: {kind: KindNumber, bytes: 2},
	0xcc - 0xc0:       {kind: KindInt, bytes: 1}, 0xcd - 0xc0: {kind: KindInt, bytes: 2},
	0xce - 0xc0: {kind: KindInt, bytes: 4}, 0xcf - 0xc0: {kind: KindInt, bytes: 8},
	0xd0 - 0xc0: {kind: KindInt, bytes: 1, signed: true}, 0xd1 - 0xc0: {kind: KindInt, bytes: 2, signed: true},
	0xd2 - 0xc0: {kind: KindInt, bytes: 4, signed: true}, 0xd3 - 0xc0: {kind: KindInt, bytes: 8, signed: true},
	0xd9 - 0xc0: {kind: KindStr, bytes: 1}, 0xda - 0xc0: {kind: KindStr, bytes: 2}, 0xdb - 0xc0: {kind: KindStr, bytes: 4},
	0xdc - 0xc0: {kind: KindArray, bytes: 2}, 0xdd - 0xc0: {kind: KindArray, bytes: 4},
	0xde - 0xc0: {kind: KindMap, bytes: 2}, 0xdf - 0xc0: {kind: KindMap, bytes: 4},
}

// readWideHeader reads a header whose first byte is 0xc0 to 0xdf and is followed
// by rest. ok is false if rest is too short, the protocol does not allow the
// type, or an integer is larger than int64.
func readWideHeader(first byte, rest []byte) (h header, ok bool) {
	wide := wideHeaders[first-0xc0]
	if wide.kind == 0 || len(rest) < wide.bytes {
		return header{}, false
	}
	var number uint64 // a length or an integer
	switch wide.bytes {
	case 1:
		number = uint64(rest[0])
	case 2:
		number = uint64(binary.BigEndian.Uint16(rest))
	case 4:
		number = uint64(binary.BigEndian.Uint32(rest))
	case 8:
		number = binary.BigEndian.Uint64(rest)
	}

	h = header{kind: wide.kind, size: 1 + wide.bytes}
	switch {
	case h.kind == KindNumber: // an extension, which has a byte for its type
		h.n, h.size = number, h.size+1
		return h, len(rest) > wide.bytes
	case h.kind == KindBool:
		h.v = int64(first & 1)
	case h.kind != KindInt:
		h.n = number
	case wide.signed: // extend the sign to 64 bits
		shift := 64 - 8*wide.bytes
		h.v = int64(number<<shift) >> shift
	case number > math.MaxInt64:
		return header{}, false
	default:
		h.v = int64(number)
	}
	return h, true
}

// Kind returns the type of r, 0 if r is empty, as it is for a missing key.
func (r Raw) Kind() Kind {
	h, _ := readHeader(r)
	return h.kind
}

// IsNil reports whether r is nil or empty.
func (r Raw) IsNil() bool { return len(r) == 0 || r[0] == 0xc0 }

// Int returns r's integer. ok is false if r is not an integer.
func (r Raw) Int() (v int64, ok bool) {
	h, _ := readHeader(r)
	return h.v, h.kind == KindInt
}

// Bool returns r's bool. ok is false if r is not a bool.
func (r Raw) Bool() (v, ok bool) {
	h, _ := readHeader(r)
	return h.v == 1, h.kind == KindBool
}

// Text returns r's text, in place. ok is false if r is not text.
func (r Raw) Text() (v []byte, ok bool) { return r.body(KindStr) }

// Str returns a copy of r's text. ok is false if r is not text.
func (r Raw) Str() (v string, ok bool) {
	b, ok := r.Text()
	return string(b), ok
}

// Bin returns r's binary, in place. ok is false if r is not binary.
func (r Raw) Bin() (v []byte, ok bool) { return r.body(KindBin) }

// body returns the bytes of a text or a binary. ok is false if r is of another
// kind.
func (r Raw) body(kind Kind) (v []byte, ok bool) {
	h, _ := readHeader(r)
	if h.kind != kind {
		return nil, false
	}
	return r[h.size : h.size+int(h.n)], true
}

// Len returns the number of items of an array or pairs of a map, 0 for other
// kinds.
func (r Raw) Len() int {
	h, _ := readHeader(r)
	if h.kind != KindArray && h.kind != KindMap {
		return 0
	}
	return int(h.n)
}

// Items iterates over the values of an array, which share r's memory. Other kinds
// have none.
func (r Raw) Items() iter.Seq[Raw] {
	return func(yield func(Raw) bool) {
		h, _ := readHeader(r)
		if h.kind != KindArray {
			return
		}
		offset := h.size
		for range h.n {
			end := skip(r, offset)
			if !yield(r[offset:end:end]) {
				return
			}
			offset = end
		}
	}
}

// Pairs iterates over the keys and values of a map, which share r's memory. It
// includes repeated keys, of which the last value counts. Other kinds have none.
func (r Raw) Pairs() iter.Seq2[[]byte, Raw] {
	return func(yield func([]byte, Raw) bool) {
		h, _ := readHeader(r)
		if h.kind != KindMap {
			return
		}
		offset := h.size
		for range h.n {
			keyEnd := skip(r, offset)
			end := skip(r, keyEnd)
			key, _ := r[offset:keyEnd].Text()
			if !yield(key, r[keyEnd:end:end]) {
				return
			}
			offset = end
		}
	}
}

// skip returns the offset of the end of the value at offset at. It is not
// recursive: it counts the values that remain, of all open arrays and maps
// together.
func skip(r Raw, at int) (end int) {
	for remaining := 1; remaining > 0; remaining-- {
		h, _ := readHeader(r[at:])
		at += h.size
		switch h.kind {
		case KindStr, KindBin, KindNumber:
			at += int(h.n)
		case KindArray:
			remaining += int(h.n)
		case KindMap:
			remaining += 2 * int(h.n)
		}
	}
	return at
}

// Get returns the value of a map's key, empty if there is no such key.
func (r Raw) Get(key string) Raw {
	var found [1]Raw
	r.pick(found[:], key)
	return found[0]
}

// getText returns a copy of the text of a map's key, "" if there is no such key
// or its value is not text.
func (r Raw) getText(key string) string {
	text, _ := r.Get(key).Str()
	return text
}

// pick stores the value of each of the given keys in r, which is a map, in found: that
// of keys[i] in found[i]. It reads the map only once, and fastest if keys are sorted as most
// maps are. Where a key is missing, found is unchanged.
func (r Raw) pick(found []Raw, keys ...string) {
	next := 0
	for key, value := range r.Pairs() {
		for range keys {
			i := next
			if next++; next == len(keys) {
				next = 0
			}
			if string(key) == keys[i] {
				found[i] = value
				break
			}
		}
	}
}

// HasBinary reports whether r is or contains binary, which JSON cannot
// represent.
func (r Raw) HasBinary() bool { return r.has(KindBin) }

// HasNumber reports whether r is or contains a number, which only JSON can represent.
func (r Raw) HasNumber() bool { return bytes.IndexByte(r, numberCode) >= 0 && r.has(KindNumber) }

// has reports whether r is or contains a scalar of the given kind.
func (r Raw) has(kind Kind) bool {
	for at := 0; at < len(r); {
		h, ok := readHeader(r[at:])
		if h.kind == kind {
			return true
		}
		if !ok {
			return false
		}
		at += h.size
		switch h.kind {
		case KindStr, KindBin, KindNumber:
			at += int(h.n)
		}
	}
	return false
}
