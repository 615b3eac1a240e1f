package structpack

import (
	"bytes"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// The same struct in an older and a newer release.
type (
	oldStruct struct{ A string }
	newStruct struct {
		A string
		B int64
	}
)

func TestAppendedFields(t *testing.T) {
	convert := func(from, to any) error {
		raw := Encode(nil, func(e *Encoder) { e.Value(from) })
		return Decode(raw, func(d *Decoder) error { return d.Value(to) })
	}
	var up newStruct
	if err := convert(&oldStruct{"x"}, &up); err != nil || up != (newStruct{A: "x"}) {
		t.Errorf("older entry read as %+v, %v", up, err)
	}
	if err := convert(&newStruct{"x", 1}, new(oldStruct)); err == nil {
		t.Error("a field of a newer release was dropped without an error")
	}
	if err := convert(&newStruct{"x", 300}, new(struct {
		A string
		B uint8
	})); err == nil {
		t.Error("300 was decoded into a uint8")
	}
}

func TestRejectsLossyTypes(t *testing.T) {
	for _, bad := range []any{struct{ a int }{}, struct{ A any }{}, struct{ A *[]int }{}, struct{ A *time.Time }{}, struct{ A func() }{}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%T was accepted", bad)
				}
			}()
			compile(reflect.TypeOf(bad))
		}()
	}
}

// TestEncoder_Library compares the encoding with that of msgpack/v5, around each length at
// which it changes.
func TestEncoder_Library(t *testing.T) {
	var library bytes.Buffer
	l := msgpack.NewEncoder(&library)
	got := Encode(nil, func(e *Encoder) {
		for _, edge := range []int64{0, 16, 32, math.MaxInt8, math.MaxUint8, math.MaxInt16, math.MaxUint16, math.MaxInt32, math.MaxUint32, math.MaxInt64 - 3} {
			for n := edge - 2; n < edge+3; n++ {
				e.Int(n)
				e.Int(-n)
				e.Uint(uint64(n))
				must(t, l.EncodeInt(n), l.EncodeInt(-n), l.EncodeUint(uint64(n)))
				if n >= 0 && n <= math.MaxUint32 {
					e.ArrayLen(int(n))
					must(t, l.EncodeArrayLen(int(n)))
				}
				if n >= 0 && n <= math.MaxUint16+2 {
					s := strings.Repeat("x", int(n))
					e.String(s)
					e.bytes([]byte(s))
					must(t, l.EncodeString(s), l.EncodeBytes([]byte(s)))
				}
			}
		}
		e.bytes(nil)
		e.bool(true)
		e.bool(false)
		must(t, l.EncodeBytes(nil), l.EncodeBool(true), l.EncodeBool(false))
	})
	if !bytes.Equal(got, library.Bytes()) {
		t.Errorf("%d bytes, which differ from the library's %d", len(got), library.Len())
	}
}

func must(t *testing.T, errs ...error) {
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// libraryBytes is DecodeBytes without the memory that a length alone makes it allocate.
func libraryBytes(d *msgpack.Decoder) (any, error) {
	n, err := d.DecodeBytesLen()
	switch {
	case err != nil || n < 0:
		return []byte(nil), err
	case n > 100:
		return nil, io.ErrUnexpectedEOF
	}
	b := make([]byte, n)
	return b, d.ReadFull(b)
}

// TestDecoder_Library compares what is decoded after each code, and what is refused, with
// msgpack/v5.
func TestDecoder_Library(t *testing.T) {
	steps := map[string]struct {
		own     func(*Decoder) (any, error)
		library func(*msgpack.Decoder) (any, error)
	}{
		"bool":  {func(d *Decoder) (any, error) { return d.bool() }, func(d *msgpack.Decoder) (any, error) { return d.DecodeBool() }},
		"int":   {func(d *Decoder) (any, error) { return d.Int() }, func(d *msgpack.Decoder) (any, error) { return d.DecodeInt64() }},
		"uint":  {func(d *Decoder) (any, error) { return d.Uint() }, func(d *msgpack.Decoder) (any, error) { return d.DecodeUint64() }},
		"array": {func(d *Decoder) (any, error) { return d.ArrayLen() }, func(d *msgpack.Decoder) (any, error) { return d.DecodeArrayLen() }},
		"bytes": {func(d *Decoder) (any, error) { return d.bytes() }, libraryBytes},
	}
	for name, step := range steps {
		for code := range 256 {
			for _, tail := range [][]byte{nil, {0}, {1}, {0xff}, {0, 2}, {0xfe, 3}, {0, 0, 0, 2}, {0xfe, 0, 0, 1, 0}, {0x80, 8: 0}, {0xff, 6: 1}, {39: 7}} {
				raw := append([]byte{byte(code)}, tail...)
				var got any
				var rest int
				err := Decode(raw, func(d *Decoder) (err error) {
					got, err = step.own(d)
					rest, d.pos = d.rest(), len(raw)
					return err
				})
				src := bytes.NewReader(raw)
				want, wantErr := step.library(msgpack.NewDecoder(src))
				if (err == nil) != (wantErr == nil) || err == nil && (rest != src.Len() || !reflect.DeepEqual(got, want)) {
					t.Errorf("%s of %x: %v, %v, %d bytes left; the library decodes %v, %v, %d left", name, raw, got, err, rest, want, wantErr, src.Len())
				}
			}
		}
	}
}

// TestDecode_AllocatesOnce checks that the elements of a slice are allocated at once, but
// that the number of elements that a message claims does not decide how much.
func TestDecode_AllocatesOnce(t *testing.T) {
	type large struct{ A, B, C, D, E, F, G, H string }
	const n = 10_000
	capacity := func(raw []byte) int {
		var values []large
		_ = Decode(raw, func(d *Decoder) error { return d.Value(&values) })
		return cap(values)
	}
	values := slices.Repeat([]large{{A: "text", H: "x"}}, n)
	if c := capacity(Encode(nil, func(e *Encoder) { e.Value(&values) })); c < n || c > n*11/10 {
		t.Errorf("capacity %d for %d elements", c, n)
	}
	hostile := Encode(nil, func(e *Encoder) { e.ArrayLen(n); e.buf = append(e.buf, make([]byte, n)...) })
	if c := capacity(hostile); c > n/5 {
		t.Errorf("capacity %d for a message of %d bytes, none of which is an element", c, len(hostile))
	}
	values = make([]large, n)
	if c := capacity(Encode(nil, func(e *Encoder) { e.Value(&values) })); c < n {
		t.Errorf("capacity %d for %d empty elements", c, n)
	}
}
