package overhop

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and maps may be nested, the frame's own map
// counted.
const MaxDepth = 128

// Raw is one MessagePack value that [Check] has found to be allowed on the
// wire, or that this package has written. Its methods read it in place,
// without copying and without building a tree.
type Raw []byte

// Nil is the MessagePack nil.
var Nil = Raw{0xc0}

// EmptyMap is the MessagePack map without keys.
var EmptyMap = Raw{0x80}

// CodecError says why bytes are not one allowed value.
type CodecError struct {
	Offset int // in bytes, where reading failed
	Reason string
}

func (e *CodecError) Error() string {
	return fmt.Sprintf("not an allowed MessagePack value: %s at byte %d", e.Reason, e.Offset)
}

// Kind is the type of a value.
type Kind uint8

// The kinds of value the wire allows.
const (
	KindNil Kind = iota + 1
	KindBool
	KindInt
	KindStr
	KindBin
	KindArray
	KindMap
)

var kindNames = [...]string{"nothing", "nil", "bool", "int", "string", "binary", "array", "map"}

func (k Kind) String() string { return kindNames[k] }

// Check tells whether b is exactly one allowed value: nil, bool, an integer in
// int64's range, UTF-8 text, binary, arrays, and maps whose keys are UTF-8
// text, nested at most [MaxDepth] deep, with nothing behind it. It allocates
// nothing whatever sizes b announces. The error is a [*CodecError].
func Check(b []byte) error { return CheckDepth(b, MaxDepth) }

// CheckDepth is [Check] for a value that may be nested at most levels deep.
func CheckDepth(b []byte, levels int) error {
	c := checker{b: b}
	if err := c.value(levels); err != nil {
		return err
	}
	if c.at != len(b) {
		return c.fail("trailing bytes")
	}
	return nil
}

type checker struct {
	b  []byte
	at int
}

func (c *checker) fail(reason string) error { return &CodecError{Offset: c.at, Reason: reason} }

// value checks one value; depth is how many levels of containers are left.
func (c *checker) value(depth int) error {
	h, ok := readHead(c.b[c.at:])
	if !ok {
		return c.refuse()
	}
	switch h.kind {
	case KindArray, KindMap:
		return c.container(h, depth)
	case KindStr, KindBin:
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

func (c *checker) container(h head, depth int) error {
	if depth == 0 {
		return c.fail("nested too deep")
	}
	c.at += h.size
	for range h.n {
		if h.kind == KindMap {
			if c.at < len(c.b) && !isText(c.b[c.at]) {
				return c.fail("map key is not text")
			}
			if err := c.value(depth); err != nil {
				return err
			}
		}
		if err := c.value(depth - 1); err != nil {
			return err
		}
	}
	return nil
}

func isText(first byte) bool { return first>>5 == 5 || first >= 0xd9 && first <= 0xdb }

// refuse names what readHead did not take.
func (c *checker) refuse() error {
	if c.at >= len(c.b) {
		return c.fail("cut off")
	}
	switch first := c.b[c.at]; {
	case first == 0xca || first == 0xcb:
		return c.fail("float")
	case first >= 0xc7 && first <= 0xc9 || first >= 0xd4 && first <= 0xd8:
		return c.fail("extension type")
	case first == 0xc1:
		return c.fail("reserved byte 0xc1")
	case first == 0xcf && len(c.b)-c.at >= 9:
		return c.fail("integer beyond int64")
	}
	return c.fail("cut off")
}

// head is a value's first bytes: its type and, for a scalar, its value.
type head struct {
	kind Kind
	size int    // bytes of the head itself
	n    uint64 // length of text or binary, number of items or pairs
	v    int64  // of an int or a bool
}

// readHead reads the head of the value that b begins with. It is not ok if b
// is too short or the type is not allowed.
func readHead(b []byte) (head, bool) {
	if len(b) == 0 {
		return head{}, false
	}
	first := b[0]
	switch {
	case first < 0x80:
		return head{kind: KindInt, size: 1, v: int64(first)}, true
	case first < 0x90:
		return head{kind: KindMap, size: 1, n: uint64(first & 0x0f)}, true
	case first < 0xa0:
		return head{kind: KindArray, size: 1, n: uint64(first & 0x0f)}, true
	case first < 0xc0:
		return head{kind: KindStr, size: 1, n: uint64(first & 0x1f)}, true
	case first >= 0xe0:
		return head{kind: KindInt, size: 1, v: int64(int8(first))}, true
	}
	return readWideHead(first, b[1:])
}

// wide tells of the types 0xc0 to 0xdf what they are and how many bytes of
// length or value follow the first.
var wide = [32]struct {
	kind   Kind
	bytes  int
	signed bool
}{
	0xc0 - 0xc0: {kind: KindNil},
	0xc2 - 0xc0: {kind: KindBool}, 0xc3 - 0xc0: {kind: KindBool},
	0xc4 - 0xc0: {kind: KindBin, bytes: 1}, 0xc5 - 0xc0: {kind: KindBin, bytes: 2}, 0xc6 - 0xc0: {kind: KindBin, bytes: 4},
	0xcc - 0xc0: {kind: KindInt, bytes: 1}, 0xcd - 0xc0: {kind: KindInt, bytes: 2},
	0xce - 0xc0: {kind: KindInt, bytes: 4}, 0xcf - 0xc0: {kind: KindInt, bytes: 8},
	0xd0 - 0xc0: {kind: KindInt, bytes: 1, signed: true}, 0xd1 - 0xc0: {kind: KindInt, bytes: 2, signed: true},
	0xd2 - 0xc0: {kind: KindInt, bytes: 4, signed: true}, 0xd3 - 0xc0: {kind: KindInt, bytes: 8, signed: true},
	0xd9 - 0xc0: {kind: KindStr, bytes: 1}, 0xda - 0xc0: {kind: KindStr, bytes: 2}, 0xdb - 0xc0: {kind: KindStr, bytes: 4},
	0xdc - 0xc0: {kind: KindArray, bytes: 2}, 0xdd - 0xc0: {kind: KindArray, bytes: 4},
	0xde - 0xc0: {kind: KindMap, bytes: 2}, 0xdf - 0xc0: {kind: KindMap, bytes: 4},
}

func readWideHead(first byte, rest []byte) (head, bool) {
	w := wide[first-0xc0]
	if w.kind == 0 || len(rest) < w.bytes {
		return head{}, false
	}
	h := head{kind: w.kind, size: 1 + w.bytes}
	var n uint64
	switch w.bytes {
	case 1:
		n = uint64(rest[0])
	case 2:
		n = uint64(binary.BigEndian.Uint16(rest))
	case 4:
		n = uint64(binary.BigEndian.Uint32(rest))
	case 8:
		n = binary.BigEndian.Uint64(rest)
	}
	switch {
	case h.kind == KindBool:
		h.v = int64(first & 1)
	case h.kind != KindInt:
		h.n = n
	case w.signed:
		shift := 64 - 8*w.bytes
		h.v = int64(n<<shift) >> shift
	case n > math.MaxInt64:
		return head{}, false
	default:
		h.v = int64(n)
	}
	return h, true
}

// Kind tells the type of r; 0 if r is empty, which stands for a key that is
// not there.
func (r Raw) Kind() Kind {
	h, _ := readHead(r)
	return h.kind
}

// IsNil tells a nil or a missing value.
func (r Raw) IsNil() bool { return len(r) == 0 || r[0] == 0xc0 }

// Int is r's integer; ok is false for another kind.
func (r Raw) Int() (v int64, ok bool) {
	h, _ := readHead(r)
	return h.v, h.kind == KindInt
}

// Bool is r's truth; ok is false for another kind.
func (r Raw) Bool() (v, ok bool) {
	h, _ := readHead(r)
	return h.v == 1, h.kind == KindBool
}

// Text is r's text, in place; ok is false for another kind.
func (r Raw) Text() (v []byte, ok bool) {
	h, _ := readHead(r)
	if h.kind != KindStr {
		return nil, false
	}
	return r[h.size : h.size+int(h.n)], true
}

// Str is a copy of r's text; ok is false for another kind.
func (r Raw) Str() (v string, ok bool) {
	b, ok := r.Text()
	return string(b), ok
}

// Bin is r's binary, in place; ok is false for another kind.
func (r Raw) Bin() (v []byte, ok bool) {
	h, _ := readHead(r)
	if h.kind != KindBin {
		return nil, false
	}
	return r[h.size : h.size+int(h.n)], true
}

// Len is the number of an array's items or of a map's pairs, else 0.
func (r Raw) Len() int {
	h, _ := readHead(r)
	if h.kind != KindArray && h.kind != KindMap {
		return 0
	}
	return int(h.n)
}

// Items gives an array's values in order; none for another kind.
func (r Raw) Items() iter.Seq[Raw] {
	return func(yield func(Raw) bool) {
		h, _ := readHead(r)
		if h.kind != KindArray {
			return
		}
		at := h.size
		for range h.n {
			end := skip(r, at)
			if !yield(r[at:end:end]) {
				return
			}
			at = end
		}
	}
}

// Pairs gives a map's keys and values as they were written, repeated keys
// included; none for another kind. Of a repeated key the last value counts.
func (r Raw) Pairs() iter.Seq2[[]byte, Raw] {
	return func(yield func([]byte, Raw) bool) {
		h, _ := readHead(r)
		if h.kind != KindMap {
			return
		}
		at := h.size
		for range h.n {
			key, value, end := pairAt(r, at)
			if !yield(key, value) {
				return
			}
			at = end
		}
	}
}

func pairAt(r Raw, at int) (key []byte, value Raw, end int) {
	mid := skip(r, at)
	end = skip(r, mid)
	key, _ = r[at:mid].Text()
	return key, r[mid:end:end], end
}

// skip gives the end of the value that begins at at.
func skip(r Raw, at int) int {
	left := 1
	for left > 0 {
		h, _ := readHead(r[at:])
		left--
		at += h.size
		switch h.kind {
		case KindStr, KindBin:
			at += int(h.n)
		case KindArray:
			left += int(h.n)
		case KindMap:
			left += 2 * int(h.n)
		}
	}
	return at
}

// Get is the value of a map's key, empty if there is none.
func (r Raw) Get(key string) Raw {
	var found [1]Raw
	r.pick(found[:], key)
	return found[0]
}

// pick finds the values of several keys in one pass.
func (r Raw) pick(found []Raw, keys ...string) {
	for k, v := range r.Pairs() {
		for i, key := range keys {
			if string(k) == key {
				found[i] = v
				break
			}
		}
	}
}

// HasBinary tells whether r is or holds binary: what JSON cannot carry.
func (r Raw) HasBinary() bool {
	for at := 0; at < len(r); {
		h, ok := readHead(r[at:])
		if !ok || h.kind == KindBin {
			return ok
		}
		at += h.size
		if h.kind == KindStr {
			at += int(h.n)
		}
	}
	return false
}
