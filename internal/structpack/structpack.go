package structpack

import (
	"bytes"
	"fmt"
	"reflect"
	"sync"
)

// Encoder encodes values into a buffer. Encoders are pooled.
type Encoder struct{ buf []byte }

var encoders = sync.Pool{New: func() any { return new(Encoder) }}

// Encode returns prefix and what put encodes after it, in new memory.
func Encode(prefix []byte, put func(*Encoder)) []byte {
	e := encoders.Get().(*Encoder)
	defer encoders.Put(e)
	e.buf = append(e.buf[:0], prefix...)
	put(e)
	return bytes.Clone(e.buf)
}

// Value encodes what the pointer p points to. It panics if p is nil or no pointer, or if a
// field cannot be encoded, which are programming errors.
func (e *Encoder) Value(p any) {
	v := reflect.ValueOf(p)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		panic(fmt.Sprintf("structpack: %T is not a pointer to a value", p))
	}
	codecOf(v.Type().Elem()).put(e, v.UnsafePointer())
}

// Decoder decodes a byte slice. It has a small cache of short strings: the names of
// queues, nodes and workers repeat within a message and from one to the next.
// Decoders are pooled.
type Decoder struct {
	raw      []byte     // the input
	pos      int        // in raw, of what is decoded next
	shared   bool       // decoded byte slices share raw's memory
	interned [64]string // the cache, by a hash of the string
}

const maxInterned = 64 // longest string that is cached, in bytes

var decoders = sync.Pool{New: func() any { return new(Decoder) }}

// Decode calls get with a decoder of raw, all of which get must consume. The
// decoder must not be used after get has returned.
func Decode(raw []byte, get func(*Decoder) error) error { return decode(raw, false, get) }

// DecodeShared is like [Decode], but decoded byte slices share raw's memory.
func DecodeShared(raw []byte, get func(*Decoder) error) error { return decode(raw, true, get) }

// decode is Decode, or DecodeShared if shared is set.
func decode(raw []byte, shared bool, get func(*Decoder) error) error {
	d := decoders.Get().(*Decoder)
	defer func() {
		d.raw = nil
		decoders.Put(d)
	}()
	d.raw, d.pos, d.shared = raw, 0, shared
	if err := get(d); err != nil {
		return err
	}
	if d.rest() > 0 {
		return fmt.Errorf("%d bytes too many", d.rest())
	}
	return nil
}

// Value decodes into what the pointer p points to.
func (d *Decoder) Value(p any) error {
	v := reflect.ValueOf(p)
	return codecOf(v.Type().Elem()).get(d, v.UnsafePointer())
}

// ExpectArray decodes the header of an array that must have want elements.
func (d *Decoder) ExpectArray(want int) error {
	n, err := d.ArrayLen()
	if err == nil && n != want {
		err = fmt.Errorf("array of %d, not %d", n, want)
	}
	return err
}

// string decodes a string, "" for nil. A string of at most maxInterned bytes is
// taken from the cache, or put there in place of one with the same hash.
func (d *Decoder) string() (string, error) {
	b, err := d.blob()
	n := len(b)
	if n == 0 || n > maxInterned {
		return string(b), err
	}
	hash := n*31 + int(b[0])*7 + int(b[n-1])
	cached := &d.interned[hash%len(d.interned)]
	if *cached != string(b) {
		*cached = string(b)
	}
	return *cached, nil
}

// bytes decodes a byte slice, nil for nil. It copies the bytes unless d.shared is set.
func (d *Decoder) bytes() ([]byte, error) {
	b, err := d.blob()
	if !d.shared {
		b = bytes.Clone(b)
	}
	return b, err
}
