package structpack

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"sync"

	"github.com/vmihailenco/msgpack/v5"
)

// Encoder encodes values into a buffer. Encoders are pooled.
type Encoder struct {
	*msgpack.Encoder
	buf bytes.Buffer
}

var encoders = sync.Pool{New: func() any { return &Encoder{Encoder: msgpack.NewEncoder(nil)} }}

// Encode returns prefix and what put encodes after it, in new memory. The error
// is that of put.
func Encode(prefix []byte, put func(*Encoder) error) ([]byte, error) {
	e := encoders.Get().(*Encoder)
	defer encoders.Put(e)
	e.buf.Reset()
	e.buf.Write(prefix)
	e.ResetWriter(&e.buf)
	if err := put(e); err != nil {
		return nil, err
	}
	return bytes.Clone(e.buf.Bytes()), nil
}

// Value encodes what the pointer p points to. It panics if a field of its type
// cannot be encoded, which is a programming error.
func (e *Encoder) Value(p any) error {
	v := reflect.ValueOf(p)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("%T is not a pointer to a value", p)
	}
	return codecOf(v.Type().Elem()).put(e.Encoder, v.Elem())
}

// Decoder decodes a byte slice. It has a small cache of short strings: the names of
// queues, nodes and workers repeat within a message and from one to the next.
// Decoders are pooled.
type Decoder struct {
	*msgpack.Decoder
	raw      []byte            // the input
	shared   bool              // decoded byte slices share raw's memory
	src      bytes.Reader      // of raw
	buf      [maxInterned]byte // of string
	interned [64]string        // the cache, by a hash of the string
}

const maxInterned = 64 // longest string that is cached, in bytes

var decoders = sync.Pool{New: func() any { return &Decoder{Decoder: msgpack.NewDecoder(nil)} }}

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
		d.src.Reset(nil)
		decoders.Put(d)
	}()
	d.raw, d.shared = raw, shared
	d.src.Reset(raw)
	d.Reset(&d.src) // reads no further than what it decodes, because src is an io.ByteScanner
	if err := get(d); err != nil {
		return err
	}
	if d.src.Len() > 0 {
		return fmt.Errorf("%d bytes too many", d.src.Len())
	}
	return nil
}

// Value decodes into what the pointer p points to.
func (d *Decoder) Value(p any) error {
	v := reflect.ValueOf(p).Elem()
	return codecOf(v.Type()).get(d, v)
}

// ExpectArray decodes the header of an array that must have want elements.
func (d *Decoder) ExpectArray(want int) error {
	n, err := d.DecodeArrayLen()
	if err == nil && n != want {
		err = fmt.Errorf("array of %d, not %d", n, want)
	}
	return err
}

// string decodes a string, "" for nil. A string of at most maxInterned bytes is
// taken from the cache, or put there in place of one with the same hash.
func (d *Decoder) string() (string, error) {
	n, err := d.bytesLen()
	if err != nil || n <= 0 {
		return "", err
	}
	if n > maxInterned {
		b := make([]byte, n)
		err := d.ReadFull(b)
		return string(b), err
	}
	b := d.buf[:n]
	if err := d.ReadFull(b); err != nil {
		return "", err
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
	n, err := d.bytesLen()
	if err != nil || n < 0 {
		return nil, err
	}
	begin := len(d.raw) - d.src.Len()
	b := d.raw[begin : begin+n : begin+n]
	if _, err := d.src.Seek(int64(n), io.SeekCurrent); err != nil {
		return nil, err
	}
	if !d.shared {
		b = append(make([]byte, 0, n), b...)
	}
	return b, nil
}

// bytesLen decodes the length of a string or byte slice, -1 for nil. It fails if
// that many bytes do not follow.
func (d *Decoder) bytesLen() (int, error) {
	n, err := d.DecodeBytesLen()
	if err == nil && n > d.src.Len() {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
