package consensus

import (
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// A shape writes and reads one Go type as MessagePack. Shapes are compiled
// once a type, because commands are slices of thousands of small structs.
//
// A struct is the array of its fields in order, without the zero ones at its
// end: a field may be added there, never removed or moved. An array longer
// than the struct was written by a newer release and is refused, because what
// it says would be lost on this member alone. Times are unix nanoseconds, ids
// are 16 bytes, and nil keeps apart from empty.
type shape struct {
	put func(*msgpack.Encoder, reflect.Value) error
	get func(*reader, reflect.Value) error
}

var (
	shapes   sync.Map // reflect.Type → *shape
	timeType = reflect.TypeFor[time.Time]()
)

func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s, _ := shapes.LoadOrStore(t, compile(t))
	return s.(*shape)
}

// compile panics on a type that cannot be in a log: that is a programmer's
// error, found by the first test that encodes the command.
func compile(t reflect.Type) *shape {
	if t == timeType {
		return &shape{putTime, getTime}
	}
	switch t.Kind() {
	case reflect.Bool:
		return &shape{putBool, getBool}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return &shape{putInt, getInt}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return &shape{putUint, getUint}
	case reflect.String:
		return &shape{putString, getString}
	case reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return &shape{putBytes, getByteArray}
		}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return &shape{putBytes, getBytes}
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
	panic(fmt.Sprintf("consensus: a %v cannot be in a log entry", t))
}

func compileStruct(t reflect.Type) *shape {
	fields := make([]*shape, t.NumField())
	for i := range fields {
		if !t.Field(i).IsExported() {
			panic(fmt.Sprintf("consensus: field %s of %v is not exported and would be lost in the log", t.Field(i).Name, t))
		}
		fields[i] = shapeOf(t.Field(i).Type)
	}
	put := func(e *msgpack.Encoder, v reflect.Value) error {
		n := len(fields)
		for n > 0 && v.Field(n-1).IsZero() {
			n--
		}
		if err := e.EncodeArrayLen(n); err != nil {
			return err
		}
		for i, f := range fields[:n] {
			if err := f.put(e, v.Field(i)); err != nil {
				return err
			}
		}
		return nil
	}
	get := func(d *reader, v reflect.Value) error {
		n, err := d.DecodeArrayLen()
		if err != nil {
			return err
		}
		if n < 0 || n > len(fields) {
			return fmt.Errorf("%v with %d fields, this release knows %d", t, n, len(fields))
		}
		for i, f := range fields[:n] {
			if err := f.get(d, v.Field(i)); err != nil {
				return fmt.Errorf("%v.%s: %w", t, t.Field(i).Name, err)
			}
		}
		return nil
	}
	return &shape{put, get}
}

func compileSlice(t reflect.Type) *shape {
	elem := shapeOf(t.Elem())
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
	get := func(d *reader, v reflect.Value) error {
		n, err := d.DecodeArrayLen()
		if err != nil || n < 0 {
			return err // nil stays nil
		}
		// The length is not to be trusted for an allocation: each element
		// takes at least a byte, so the bytes themselves bound the rest.
		v.Set(reflect.MakeSlice(t, 0, min(n, 512)))
		for i := range n {
			if i == v.Cap() {
				v.Grow(min(n-i, i))
			}
			v.SetLen(i + 1)
			if err := elem.get(d, v.Index(i)); err != nil {
				return err
			}
		}
		return nil
	}
	return &shape{put, get}
}

func compileMap(t reflect.Type) *shape {
	elem := shapeOf(t.Elem())
	put := func(e *msgpack.Encoder, v reflect.Value) error {
		if v.IsNil() {
			return e.EncodeNil()
		}
		if err := e.EncodeMapLen(v.Len()); err != nil {
			return err
		}
		for it := v.MapRange(); it.Next(); {
			if err := errors.Join(e.EncodeString(it.Key().String()), elem.put(e, it.Value())); err != nil {
				return err
			}
		}
		return nil
	}
	get := func(d *reader, v reflect.Value) error {
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
	return &shape{put, get}
}

// compilePointer: nil is nil, so what it points to must have no nil of its own.
func compilePointer(t reflect.Type) *shape {
	to := t.Elem()
	switch k := to.Kind(); {
	case to == timeType, k == reflect.Pointer, k == reflect.Map, k == reflect.Slice:
		panic(fmt.Sprintf("consensus: a %v cannot be in a log entry: its nil would be ambiguous", t))
	}
	elem := shapeOf(to)
	put := func(e *msgpack.Encoder, v reflect.Value) error {
		if v.IsNil() {
			return e.EncodeNil()
		}
		return elem.put(e, v.Elem())
	}
	get := func(d *reader, v reflect.Value) error {
		code, err := d.PeekCode()
		if err != nil {
			return err
		}
		if code == msgpcode.Nil {
			return d.DecodeNil()
		}
		v.Set(reflect.New(to))
		return elem.get(d, v.Elem())
	}
	return &shape{put, get}
}

func putTime(e *msgpack.Encoder, v reflect.Value) error {
	at := v.Addr().Interface().(*time.Time)
	if at.IsZero() {
		return e.EncodeNil()
	}
	return e.EncodeInt(at.UnixNano())
}

func getTime(d *reader, v reflect.Value) error {
	code, err := d.PeekCode()
	if err != nil {
		return err
	}
	at := v.Addr().Interface().(*time.Time)
	if code == msgpcode.Nil {
		*at = time.Time{}
		return d.DecodeNil()
	}
	n, err := d.DecodeInt64()
	*at = time.Unix(0, n).UTC()
	return err
}

func putBool(e *msgpack.Encoder, v reflect.Value) error { return e.EncodeBool(v.Bool()) }

func getBool(d *reader, v reflect.Value) error {
	b, err := d.DecodeBool()
	v.SetBool(b)
	return err
}

func putInt(e *msgpack.Encoder, v reflect.Value) error { return e.EncodeInt(v.Int()) }

func getInt(d *reader, v reflect.Value) error {
	n, err := d.DecodeInt64()
	if err == nil && v.OverflowInt(n) {
		return fmt.Errorf("%d does not fit a %v", n, v.Type())
	}
	v.SetInt(n)
	return err
}

func putUint(e *msgpack.Encoder, v reflect.Value) error { return e.EncodeUint(v.Uint()) }

func getUint(d *reader, v reflect.Value) error {
	n, err := d.DecodeUint64()
	if err == nil && v.OverflowUint(n) {
		return fmt.Errorf("%d does not fit a %v", n, v.Type())
	}
	v.SetUint(n)
	return err
}

func putString(e *msgpack.Encoder, v reflect.Value) error { return e.EncodeString(v.String()) }

func getString(d *reader, v reflect.Value) error {
	s, err := d.text()
	v.SetString(s)
	return err
}

// putBytes serves byte slices and byte arrays.
func putBytes(e *msgpack.Encoder, v reflect.Value) error { return e.EncodeBytes(v.Bytes()) }

func getBytes(d *reader, v reflect.Value) error {
	b, err := d.DecodeBytes()
	v.SetBytes(b)
	return err
}

func getByteArray(d *reader, v reflect.Value) error {
	n, err := d.DecodeBytesLen()
	if err != nil {
		return err
	}
	if n != v.Len() {
		return fmt.Errorf("%d bytes for a %v", n, v.Type())
	}
	return d.ReadFull(v.Bytes())
}
