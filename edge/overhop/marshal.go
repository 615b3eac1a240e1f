package overhop

import (
	"encoding"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// ValueError describes why a Go value cannot be converted to or from a value of
// the protocol.
type ValueError struct {
	Path   string // position in the value, such as "items[3].price"; "" for the whole
	Reason string
}

func (e *ValueError) Error() string {
	if e.Path == "" {
		return "value: " + e.Reason
	}
	return "value at " + e.Path + ": " + e.Reason
}

// Marshal returns the encoding of v:
//
//   - bools, strings, and integers in the range of int64;
//   - []byte as binary, other slices and arrays as arrays;
//   - maps with text or integer keys, sorted; structs as maps whose keys are the
//     names that encoding/json would use (tag `json`, omitempty, omitzero, "-"),
//     with unnamed embedded structs merged into the outer struct;
//   - time.Time as RFC 3339 text in UTC, other [encoding.TextMarshaler]s as
//     their text;
//   - pointers and interfaces as the value they hold, nil as nil; a [Raw]
//     unchanged.
//
// The protocol has no floats: they are an error, as is every other type. Send a
// fraction as text, or as an integer of a smaller unit. The error is a
// [*ValueError].
func Marshal(v any) (Raw, error) {
	m := marshaler{}
	if err := m.value(reflect.ValueOf(v), MaxDepth-2); err != nil {
		return nil, err
	}
	return m.out, nil
}

type marshaler struct {
	out  []byte
	path []string
}

func (m *marshaler) fail(format string, args ...any) error {
	return &ValueError{Path: joinPath(m.path), Reason: fmt.Sprintf(format, args...)}
}

func joinPath(path []string) string { return strings.TrimPrefix(strings.Join(path, ""), ".") }

var (
	rawType  = reflect.TypeFor[Raw]()
	timeType = reflect.TypeFor[time.Time]()
	textType = reflect.TypeFor[encoding.TextMarshaler]()
)

// value appends v, which may contain depth levels of containers.
func (m *marshaler) value(v reflect.Value, depth int) error {
	switch {
	case !v.IsValid() || (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && v.IsNil():
		m.out = AppendNil(m.out)
		return nil
	case v.Type() == rawType:
		return m.raw(v.Bytes(), depth)
	case v.Type() == timeType:
		m.out = AppendTime(m.out, v.Interface().(time.Time))
		return nil
	case v.Kind() != reflect.Interface && v.Type().Implements(textType):
		text, err := v.Interface().(encoding.TextMarshaler).MarshalText()
		if err != nil {
			return m.fail("%v", err)
		}
		return m.text(string(text))
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if depth < 0 {
			return m.fail("is nested more than %d deep, or within itself", MaxDepth-2)
		}
		return m.value(v.Elem(), depth-1+pointerCost(v))
	case reflect.Slice, reflect.Array, reflect.Map, reflect.Struct:
		return m.container(v, depth)
	}
	return m.scalar(v)
}

// pointerCost returns 1 for a pointer to anything but a pointer, to compensate
// for the level it takes: only a cycle of pointers should exhaust the levels.
func pointerCost(v reflect.Value) int {
	if v.Elem().Kind() == reflect.Pointer || v.Elem().Kind() == reflect.Interface {
		return 0
	}
	return 1
}

func (m *marshaler) raw(b Raw, depth int) error {
	b = b.orNil()
	if err := CheckDepth(b, depth); err != nil {
		return m.fail("%v", err)
	}
	m.out = append(m.out, b...)
	return nil
}

func (m *marshaler) text(s string) error {
	if !utf8.ValidString(s) {
		return m.fail("text is not UTF-8; send it as []byte")
	}
	m.out = AppendStr(m.out, s)
	return nil
}

func (m *marshaler) scalar(v reflect.Value) error {
	switch v.Kind() {
	case reflect.Bool:
		m.out = AppendBool(m.out, v.Bool())
	case reflect.String:
		return m.text(v.String())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		m.out = AppendInt(m.out, v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		if v.Uint() > math.MaxInt64 {
			return m.fail("%d is beyond int64, the wire's largest integer; send it as text", v.Uint())
		}
		m.out = AppendInt(m.out, int64(v.Uint()))
	case reflect.Float32, reflect.Float64:
		return m.fail("the wire has no floats; send %v as text, or as an integer of a smaller unit", v.Float())
	default:
		return m.fail("a %s cannot be sent", v.Type())
	}
	return nil
}

func (m *marshaler) container(v reflect.Value, depth int) error {
	if depth <= 0 {
		return m.fail("is nested more than %d deep, or within itself", MaxDepth-2)
	}
	switch {
	case v.Kind() == reflect.Struct:
		return m.structValue(v, depth)
	case v.Kind() == reflect.Map:
		return m.mapValue(v, depth)
	case v.Kind() == reflect.Slice && v.IsNil():
		m.out = AppendNil(m.out)
		return nil
	case v.Type().Elem().Kind() == reflect.Uint8 && v.Kind() == reflect.Slice:
		m.out = AppendBin(m.out, v.Bytes())
		return nil
	}
	m.out = AppendArray(m.out, v.Len())
	for i := range v.Len() {
		if err := m.element(fmt.Sprintf("[%d]", i), v.Index(i), depth); err != nil {
			return err
		}
	}
	return nil
}

// element appends a part of a container. name is appended to the path of
// errors.
func (m *marshaler) element(name string, v reflect.Value, depth int) error {
	m.path = append(m.path, name)
	err := m.value(v, depth-1)
	m.path = m.path[:len(m.path)-1]
	return err
}

func (m *marshaler) mapValue(v reflect.Value, depth int) error {
	if v.IsNil() {
		m.out = AppendNil(m.out)
		return nil
	}
	type pair struct {
		key   string
		value reflect.Value
	}
	pairs := make([]pair, 0, v.Len())
	for it := v.MapRange(); it.Next(); {
		key, err := keyText(it.Key())
		if err != nil {
			return m.fail("%v", err)
		}
		pairs = append(pairs, pair{key, it.Value()})
	}
	slices.SortFunc(pairs, func(a, b pair) int { return strings.Compare(a.key, b.key) })
	m.out = AppendMap(m.out, len(pairs))
	for _, p := range pairs {
		if err := m.text(p.key); err != nil {
			return err
		}
		if err := m.element("."+p.key, p.value, depth); err != nil {
			return err
		}
	}
	return nil
}

// keyText returns a map key as text, as encoding/json writes it.
func keyText(key reflect.Value) (string, error) {
	switch {
	case key.Kind() == reflect.String:
		return key.String(), nil
	case key.Type().Implements(textType):
		text, err := key.Interface().(encoding.TextMarshaler).MarshalText()
		return string(text), err
	case key.CanInt():
		return fmt.Sprint(key.Int()), nil
	case key.CanUint():
		return fmt.Sprint(key.Uint()), nil
	}
	return "", fmt.Errorf("map keys must be text or integers, not %s", key.Type())
}

func (m *marshaler) structValue(v reflect.Value, depth int) error {
	fields := fieldsOf(v.Type())
	fields = slices.DeleteFunc(fields, func(f field) bool {
		at, err := v.FieldByIndexErr(f.index)
		return err != nil || f.omits(at) // the error means a nil embedded pointer
	})
	m.out = AppendMap(m.out, len(fields))
	for _, f := range fields {
		if err := m.text(f.name); err != nil {
			return err
		}
		if err := m.element("."+f.name, v.FieldByIndex(f.index), depth); err != nil {
			return err
		}
	}
	return nil
}
