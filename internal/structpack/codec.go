package structpack

import (
	"bytes"
	"fmt"
	"reflect"
	"sync"
	"time"
	"unsafe"
)

// codec encodes and decodes one Go type. Codecs are compiled once per type, because
// messages are slices of thousands of small structs. The functions get the address of a
// value of that type.
type codec struct {
	put    func(*Encoder, unsafe.Pointer)
	get    func(*Decoder, unsafe.Pointer) error
	isZero func(unsafe.Pointer) bool
}

var (
	codecs   sync.Map // reflect.Type → *codec
	timeType = reflect.TypeFor[time.Time]()
)

// codecOf returns the codec of a type, which it compiles at the first call.
func codecOf(t reflect.Type) *codec {
	if c, ok := codecs.Load(t); ok {
		return c.(*codec)
	}
	c, _ := codecs.LoadOrStore(t, compile(t))
	return c.(*codec)
}

// compile returns a new codec of a type. It panics on a type that cannot be encoded.
// That is a programming error, which the first test that encodes such a value detects.
func compile(t reflect.Type) *codec {
	if t == timeType {
		return &codec{putTime, getTime, isZero[time.Time]}
	}
	switch t.Kind() {
	case reflect.Bool:
		return &codec{putBool, getBool, isZero[bool]}
	case reflect.Int8:
		return compileInt[int8](t)
	case reflect.Int16:
		return compileInt[int16](t)
	case reflect.Int32:
		return compileInt[int32](t)
	case reflect.Int64:
		return compileInt[int64](t)
	case reflect.Int:
		return compileInt[int](t)
	case reflect.Uint8:
		return compileUint[uint8](t)
	case reflect.Uint16:
		return compileUint[uint16](t)
	case reflect.Uint32:
		return compileUint[uint32](t)
	case reflect.Uint64:
		return compileUint[uint64](t)
	case reflect.Uint:
		return compileUint[uint](t)
	case reflect.String:
		return &codec{putString, getString, isZero[string]}
	case reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return compileByteArray(t)
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return &codec{putBytes, getBytes, isNil}
		}
		return compileSlice(t)
	case reflect.Pointer:
		return compilePointer(t)
	case reflect.Struct:
		return compileStruct(t)
	}
	panic(fmt.Sprintf("structpack: a %v cannot be encoded", t))
}

// isZero reports whether the value at p is the zero value.
func isZero[T comparable](p unsafe.Pointer) bool {
	var zero T
	return *(*T)(p) == zero
}

// isNil reports whether the pointer or slice at p is nil.
func isNil(p unsafe.Pointer) bool { return *(*unsafe.Pointer)(p) == nil }

// field is a field of a struct that is encoded.
type field struct {
	*codec
	offset uintptr
	name   string
}

// compileStruct returns the codec of a struct type: the array of its fields without
// zero fields at its end. The decoder sets only the fields that the array has; it
// refuses an array that is longer than the struct.
func compileStruct(t reflect.Type) *codec {
	var fields []field
	for i := range t.NumField() {
		f := t.Field(i)
		switch {
		case f.Tag.Get("msgpack") == "-":
			continue
		case !f.IsExported():
			panic(fmt.Sprintf("structpack: field %s of %v is not exported and would be lost", f.Name, t))
		}
		fields = append(fields, field{codecOf(f.Type), f.Offset, f.Name})
	}

	put := func(e *Encoder, p unsafe.Pointer) {
		n := len(fields)
		for n > 0 && fields[n-1].isZero(unsafe.Add(p, fields[n-1].offset)) {
			n--
		}
		e.ArrayLen(n)
		for i := range fields[:n] {
			fields[i].put(e, unsafe.Add(p, fields[i].offset))
		}
	}
	get := func(d *Decoder, p unsafe.Pointer) error {
		n, err := d.ArrayLen()
		if err != nil {
			return err
		}
		if n < 0 || n > len(fields) {
			return fmt.Errorf("%v with %d fields, this release knows %d", t, n, len(fields))
		}
		for i := range fields[:n] {
			if err := fields[i].get(d, unsafe.Add(p, fields[i].offset)); err != nil {
				return fmt.Errorf("%v.%s: %w", t, fields[i].name, err)
			}
		}
		return nil
	}
	return &codec{put, get, func(p unsafe.Pointer) bool { return reflect.NewAt(t, p).Elem().IsZero() }}
}

// compileSlice returns the codec of a slice type: an array, or nil.
func compileSlice(t reflect.Type) *codec {
	elem, size := codecOf(t.Elem()), t.Elem().Size()
	empty := reflect.MakeSlice(t, 0, 0)
	put := func(e *Encoder, p unsafe.Pointer) {
		if isNil(p) {
			e.nil()
			return
		}
		s := *(*[]byte)(p) // has the same address and length, whatever its elements are
		e.ArrayLen(len(s))
		for i := range len(s) {
			elem.put(e, unsafe.Add(unsafe.Pointer(unsafe.SliceData(s)), uintptr(i)*size))
		}
	}
	get := func(d *Decoder, p unsafe.Pointer) error {
		n, err := d.ArrayLen()
		if err != nil || n < 0 {
			return err // nil for a nil slice
		}
		// Each element takes at least one byte. A length that is wrong all the same
		// must not decide how much memory is allocated.
		if n > d.rest() {
			return fmt.Errorf("array of %d in %d bytes", n, d.rest())
		}
		v := reflect.NewAt(t, p).Elem()
		v.Set(empty)
		v.Grow(min(n, 512+maxExpansion*d.rest()/max(1, int(size))))
		for i := range n {
			if i == v.Cap() {
				v.Grow(min(n-i, i)) // at most doubles the capacity
			}
			v.SetLen(i + 1)
			if err := elem.get(d, unsafe.Add(v.UnsafePointer(), uintptr(i)*size)); err != nil {
				return err
			}
		}
		return nil
	}
	return &codec{put, get, isNil}
}

// maxExpansion is how many bytes of memory are allocated at once for the elements of a slice,
// in multiples of the encoding's size. The elements of messages take less.
const maxExpansion = 16

// compilePointer returns the codec of a pointer type. A nil pointer is encoded
// as nil, so the type that it points to must not have a nil itself.
func compilePointer(t reflect.Type) *codec {
	target := t.Elem()
	switch kind := target.Kind(); {
	case target == timeType, kind == reflect.Pointer, kind == reflect.Slice:
		panic(fmt.Sprintf("structpack: a %v cannot be encoded: its nil would be ambiguous", t))
	}
	elem := codecOf(target)
	put := func(e *Encoder, p unsafe.Pointer) {
		if isNil(p) {
			e.nil()
			return
		}
		elem.put(e, *(*unsafe.Pointer)(p))
	}
	get := func(d *Decoder, p unsafe.Pointer) error {
		if d.isNil() {
			return nil
		}
		v := reflect.New(target).UnsafePointer()
		*(*unsafe.Pointer)(p) = v
		return elem.get(d, v)
	}
	return &codec{put, get, isNil}
}

// putTime encodes a time as nanoseconds since 1970, the zero time as nil.
func putTime(e *Encoder, p unsafe.Pointer) {
	if at := (*time.Time)(p); at.IsZero() {
		e.nil()
	} else {
		e.Int(at.UnixNano())
	}
}

// getTime decodes what putTime has encoded.
func getTime(d *Decoder, p unsafe.Pointer) error {
	at := (*time.Time)(p)
	if d.isNil() {
		*at = time.Time{}
		return nil
	}
	nanoseconds, err := d.Int()
	*at = time.Unix(0, nanoseconds).UTC()
	return err
}

func putBool(e *Encoder, p unsafe.Pointer) { e.bool(*(*bool)(p)) }

func getBool(d *Decoder, p unsafe.Pointer) (err error) {
	*(*bool)(p), err = d.bool()
	return err
}

// compileInt returns the codec of a signed type t that is represented as a T.
func compileInt[T int8 | int16 | int32 | int64 | int](t reflect.Type) *codec {
	put := func(e *Encoder, p unsafe.Pointer) { e.Int(int64(*(*T)(p))) }
	get := func(d *Decoder, p unsafe.Pointer) error {
		n, err := d.Int()
		if int64(T(n)) != n {
			return fmt.Errorf("%d does not fit a %v", n, t)
		}
		*(*T)(p) = T(n)
		return err
	}
	return &codec{put, get, isZero[T]}
}

// compileUint returns the codec of an unsigned type t that is represented as a T.
func compileUint[T uint8 | uint16 | uint32 | uint64 | uint](t reflect.Type) *codec {
	put := func(e *Encoder, p unsafe.Pointer) { e.Uint(uint64(*(*T)(p))) }
	get := func(d *Decoder, p unsafe.Pointer) error {
		n, err := d.Uint()
		if uint64(T(n)) != n {
			return fmt.Errorf("%d does not fit a %v", n, t)
		}
		*(*T)(p) = T(n)
		return err
	}
	return &codec{put, get, isZero[T]}
}

func putString(e *Encoder, p unsafe.Pointer) { e.String(*(*string)(p)) }

func getString(d *Decoder, p unsafe.Pointer) (err error) {
	*(*string)(p), err = d.string()
	return err
}

func putBytes(e *Encoder, p unsafe.Pointer) { e.bytes(*(*[]byte)(p)) }

func getBytes(d *Decoder, p unsafe.Pointer) (err error) {
	*(*[]byte)(p), err = d.bytes()
	return err
}

// compileByteArray returns the codec of an array of bytes, which is encoded like a slice.
// Decoding fails if the encoded length is another.
func compileByteArray(t reflect.Type) *codec {
	zero := make([]byte, t.Len())
	array := func(p unsafe.Pointer) []byte { return unsafe.Slice((*byte)(p), len(zero)) }
	put := func(e *Encoder, p unsafe.Pointer) { e.bytes(array(p)) }
	get := func(d *Decoder, p unsafe.Pointer) error {
		b, err := d.blob()
		if err == nil && len(b) != len(zero) {
			err = fmt.Errorf("%d bytes for a %v", len(b), t)
		}
		copy(array(p), b)
		return err
	}
	return &codec{put, get, func(p unsafe.Pointer) bool { return bytes.Equal(array(p), zero) }}
}
