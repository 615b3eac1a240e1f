package structpack

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// codec encodes and decodes one Go type. Codecs are compiled once per type, because
// messages are slices of thousands of small structs.
type codec struct {
	put func(*msgpack.Encoder, reflect.Value) error
	get func(*Decoder, reflect.Value) error
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
		return &codec{putTime, getTime}
	}
	switch t.Kind() {
	case reflect.Bool:
		return &codec{putBool, getBool}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return &codec{putInt, getInt}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return &codec{putUint, getUint}
	case reflect.String:
		return &codec{putString, getString}
	case reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return &codec{putBytes, getByteArray}
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return &codec{putBytes, getBytes}
		}
		return compileSlice(t)
	case reflect.Map:
		if t.Key().Kind() == reflect.String {
			return compileMap(t)
		}
	case reflect.Pointer:
		return compilePointer(t)
	case reflect.Struct:
		return compileStruct(t)
	}
	panic(fmt.Sprintf("structpack: a %v cannot be encoded", t))
}

// compileStruct returns the codec of a struct type: the array of its fields without
// zero fields at its end. The decoder sets only the fields that the array has; it
// refuses an array that is longer than the struct.
func compileStruct(t reflect.Type) *codec {
	var indexes []int // of the fields that are encoded
	var codecs []*codec
	for i := range t.NumField() {
		field := t.Field(i)
		switch {
		case field.Tag.Get("msgpack") == "-":
			continue
		case !field.IsExported():
			panic(fmt.Sprintf("structpack: field %s of %v is not exported and would be lost", field.Name, t))
		}
		indexes, codecs = append(indexes, i), append(codecs, codecOf(field.Type))
	}

	put := func(e *msgpack.Encoder, v reflect.Value) error {
		n := len(indexes)
		for n > 0 && v.Field(indexes[n-1]).IsZero() {
			n--
		}
		if err := e.EncodeArrayLen(n); err != nil {
			return err
		}
		for i, index := range indexes[:n] {
			if err := codecs[i].put(e, v.Field(index)); err != nil {
				return err
			}
		}
		return nil
	}
	get := func(d *Decoder, v reflect.Value) error {
		n, err := d.DecodeArrayLen()
		if err != nil {
			return err
		}
		if n < 0 || n > len(indexes) {
			return fmt.Errorf("%v with %d fields, this release knows %d", t, n, len(indexes))
		}
		for i, index := range indexes[:n] {
			if err := codecs[i].get(d, v.Field(index)); err != nil {
				return fmt.Errorf("%v.%s: %w", t, t.Field(index).Name, err)
			}
		}
		return nil
	}
	return &codec{put, get}
}

// compileSlice returns the codec of a slice type: an array, or nil.
func compileSlice(t reflect.Type) *codec {
	elem := codecOf(t.Elem())
	put := func(e *msgpack.Encoder, v reflect.Value) error {
		if v.IsNil() {
			return e.EncodeNil()
		}
		n := v.Len()
		if err := e.EncodeArrayLen(n); err != nil {
			return err
		}
		for i := range n {
			if err := elem.put(e, v.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
	get := func(d *Decoder, v reflect.Value) error {
		n, err := d.DecodeArrayLen()
		if err != nil || n < 0 {
			return err // nil for a nil slice
		}
		// Each element takes at least one byte. A length that is wrong all the same
		// must not decide how much memory is allocated.
		if n > d.src.Len() {
			return fmt.Errorf("array of %d in %d bytes", n, d.src.Len())
		}
		v.Set(reflect.MakeSlice(t, 0, min(n, 512)))
		for i := range n {
			if i == v.Cap() {
				v.Grow(min(n-i, i)) // at most doubles the capacity
			}
			v.SetLen(i + 1)
			if err := elem.get(d, v.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
	return &codec{put, get}
}

// compileMap returns the codec of a map type with string keys: a map, or nil. The
// order of the keys is random.
func compileMap(t reflect.Type) *codec {
	elem := codecOf(t.Elem())
	put := func(e *msgpack.Encoder, v reflect.Value) error {
		if v.IsNil() {
			return e.EncodeNil()
		}
		if err := e.EncodeMapLen(v.Len()); err != nil {
			return err
		}
		for entries := v.MapRange(); entries.Next(); {
			if err := errors.Join(e.EncodeString(entries.Key().String()), elem.put(e, entries.Value())); err != nil {
				return err
			}
		}
		return nil
	}
	get := func(d *Decoder, v reflect.Value) error {
		n, err := d.DecodeMapLen()
		if err != nil || n < 0 {
			return err
		}
		v.Set(reflect.MakeMap(t))
		for range n {
			key, value := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
			if err := getString(d, key); err != nil {
				return err
			}
			if err := elem.get(d, value); err != nil {
				return err
			}
			v.SetMapIndex(key, value)
		}
		return nil
	}
	return &codec{put, get}
}

// compilePointer returns the codec of a pointer type. A nil pointer is encoded
// as nil, so the type that it points to must not have a nil itself.
func compilePointer(t reflect.Type) *codec {
	target := t.Elem()
	switch kind := target.Kind(); {
	case target == timeType, kind == reflect.Pointer, kind == reflect.Map, kind == reflect.Slice:
		panic(fmt.Sprintf("structpack: a %v cannot be encoded: its nil would be ambiguous", t))
	}
	elem := codecOf(target)
	put := func(e *msgpack.Encoder, v reflect.Value) error {
		if v.IsNil() {
			return e.EncodeNil()
		}
		return elem.put(e, v.Elem())
	}
	get := func(d *Decoder, v reflect.Value) error {
		code, err := d.PeekCode()
		if err != nil {
			return err
		}
		if code == msgpcode.Nil {
			return d.DecodeNil()
		}
		v.Set(reflect.New(target))
		return elem.get(d, v.Elem())
	}
	return &codec{put, get}
}

// putTime encodes a time as nanoseconds since 1970, the zero time as nil.
func putTime(e *msgpack.Encoder, v reflect.Value) error {
	at := v.Addr().Interface().(*time.Time)
	if at.IsZero() {
		return e.EncodeNil()
	}
	return e.EncodeInt(at.UnixNano())
}

// getTime decodes what putTime has encoded.
func getTime(d *Decoder, v reflect.Value) error {
	code, err := d.PeekCode()
	if err != nil {
		return err
	}
	target := v.Addr().Interface().(*time.Time)
	if code == msgpcode.Nil {
		*target = time.Time{}
		return d.DecodeNil()
	}
	nanoseconds, err := d.DecodeInt64()
	*target = time.Unix(0, nanoseconds).UTC()
	return err
}

func putBool(e *msgpack.Encoder, v reflect.Value) error { return e.EncodeBool(v.Bool()) }

func getBool(d *Decoder, v reflect.Value) error {
	b, err := d.DecodeBool()
	v.SetBool(b)
	return err
}

func putInt(e *msgpack.Encoder, v reflect.Value) error { return e.EncodeInt(v.Int()) }

func getInt(d *Decoder, v reflect.Value) error {
	n, err := d.DecodeInt64()
	if err == nil && v.OverflowInt(n) {
		return fmt.Errorf("%d does not fit a %v", n, v.Type())
	}
	v.SetInt(n)
	return err
}

func putUint(e *msgpack.Encoder, v reflect.Value) error { return e.EncodeUint(v.Uint()) }

func getUint(d *Decoder, v reflect.Value) error {
	n, err := d.DecodeUint64()
	if err == nil && v.OverflowUint(n) {
		return fmt.Errorf("%d does not fit a %v", n, v.Type())
	}
	v.SetUint(n)
	return err
}

func putString(e *msgpack.Encoder, v reflect.Value) error { return e.EncodeString(v.String()) }

func getString(d *Decoder, v reflect.Value) error {
	s, err := d.string()
	v.SetString(s)
	return err
}

// putBytes encodes byte slices and byte arrays.
func putBytes(e *msgpack.Encoder, v reflect.Value) error { return e.EncodeBytes(v.Bytes()) }

func getBytes(d *Decoder, v reflect.Value) error {
	b, err := d.bytes()
	v.SetBytes(b)
	return err
}

// getByteArray decodes a byte array. It fails if the encoded length is another.
func getByteArray(d *Decoder, v reflect.Value) error {
	n, err := d.DecodeBytesLen()
	if err != nil {
		return err
	}
	if n != v.Len() {
		return fmt.Errorf("%d bytes for a %v", n, v.Type())
	}
	return d.ReadFull(v.Bytes())
}
