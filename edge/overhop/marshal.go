package overhop

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/internal/usercode"
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
//   - time.Time as RFC 3339 text in UTC, a [json.Marshaler] as what it encodes
//     itself as, another [encoding.TextMarshaler] as its text;
//   - floats, integers above int64 and [json.Number] as numbers;
//   - pointers and interfaces as the value they hold, nil as nil; a [Raw]
//     unchanged.
//
// The protocol's MessagePack has no numbers besides integers, so a [Client] sends a
// value that contains one as JSON, which cannot contain binary. Every other type, and
// floats that are not finite, are errors. The error is a [*ValueError].
func Marshal(v any) (Raw, error) {
	m := marshalers.Get().(*marshaler)
	defer m.release()
	if err := m.value(reflect.ValueOf(v), MaxValueDepth); err != nil {
		return nil, err
	}
	if m.numberAt != nil && Raw(m.out).HasBinary() {
		m.valuePath = m.numberAt
		return nil, m.fail("the value has binary, and this number can only be sent as JSON, which has none; send one of them as text")
	}
	return slices.Clone(m.out), nil
}

type marshaler struct {
	valuePath
	out      Raw
	numberAt valuePath // of a number; nil: there is none
}

// valuePath is the position of the value that is being converted, such as
// ".items" and "[3]".
type valuePath []pathStep

// pathStep leads from a container to a value in it.
type pathStep struct {
	name   string // of a field or key, unless isItem
	index  int    // of an item
	isItem bool
}

// item returns the step to an item of an array.
func item(index int) pathStep { return pathStep{index: index, isItem: true} }

// fail returns an error about the value at the path.
func (path valuePath) fail(format string, args ...any) error {
	var text strings.Builder
	for i, step := range path {
		switch {
		case step.isItem:
			fmt.Fprintf(&text, "[%d]", step.index)
		case i == 0:
			text.WriteString(step.name)
		default:
			text.WriteString("." + step.name)
		}
	}
	return &ValueError{Path: text.String(), Reason: fmt.Sprintf(format, args...)}
}

var (
	rawType  = reflect.TypeFor[Raw]()
	timeType = reflect.TypeFor[time.Time]()
	textType = reflect.TypeFor[encoding.TextMarshaler]()
	jsonType = reflect.TypeFor[json.Marshaler]()

	unmarshalTextType = reflect.TypeFor[encoding.TextUnmarshaler]()
	unmarshalJSONType = reflect.TypeFor[json.Unmarshaler]()

	jsonNumberType = reflect.TypeFor[json.Number]()
)

// value appends v, in which containers may be nested up to levels deep.
func (m *marshaler) value(v reflect.Value, levels int) error {
	if !v.IsValid() {
		m.out = AppendNil(m.out)
		return nil
	}
	return m.typed(v, methodsOf(v.Type()), levels)
}

// typed is value for a valid v, whose type has these methods.
func (m *marshaler) typed(v reflect.Value, has *methods, levels int) error {
	isIndirect := v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface
	switch {
	case isIndirect && v.IsNil():
		m.out = AppendNil(m.out)
		return nil
	case has.isRaw:
		return m.raw(v.Bytes(), levels)
	case has.isTime:
		m.out = AppendTime(m.out, v.Interface().(time.Time))
		return nil
	case has.marshalJSON:
		return m.asJSON(v.Interface().(json.Marshaler), levels)
	case has.pointerMarshalJSON && v.CanAddr():
		return m.asJSON(v.Addr().Interface().(json.Marshaler), levels)
	case has.marshalText:
		text, err := marshalText(v)
		if err != nil {
			return m.fail("%s", usercode.Text(err))
		}
		return m.text(text)
	}
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if levels < 0 {
			return m.nestedTooDeep()
		}
		if target := v.Elem().Kind(); target == reflect.Pointer || target == reflect.Interface {
			levels-- // so that a cycle of pointers ends; a single pointer counts as no level
		}
		return m.value(v.Elem(), levels)
	case reflect.Slice, reflect.Array, reflect.Map, reflect.Struct:
		return m.container(v, levels)
	}
	return m.scalar(v)
}

func (m *marshaler) nestedTooDeep() error {
	return m.fail("is nested more than %d deep, or within itself", MaxValueDepth)
}

// raw appends a value that is encoded already, nil if it is empty.
func (m *marshaler) raw(encoded Raw, levels int) error {
	encoded = encoded.orNil()
	if err := check(encoded, levels, true); err != nil {
		return m.fail("%v", err)
	}
	if encoded.HasNumber() {
		m.noteNumber()
	}
	m.out = append(m.out, encoded...)
	return nil
}

// asJSON appends the value that v encodes itself as.
func (m *marshaler) asJSON(v json.Marshaler, levels int) error {
	var text []byte
	err := usercode.Do(func() (err error) {
		text, err = v.MarshalJSON()
		return err
	}, "MarshalJSON of a %T", v)
	if err != nil {
		return m.fail("%s", usercode.Text(err))
	}
	encoded, err := FromJSON(text)
	if err != nil {
		return m.fail("MarshalJSON: %v", err)
	}
	return m.raw(encoded, levels)
}

// marshalText calls MarshalText of v, which must be an [encoding.TextMarshaler].
func marshalText(v reflect.Value) (string, error) {
	var text []byte
	err := usercode.Do(func() (err error) {
		text, err = v.Interface().(encoding.TextMarshaler).MarshalText()
		return err
	}, "MarshalText of a %s", v.Type())
	return string(text), err
}

func (m *marshaler) text(s string) error {
	if !utf8.ValidString(s) {
		return m.fail("text is not UTF-8; send it as []byte")
	}
	m.out = AppendStr(m.out, s)
	return nil
}

// number appends a number that is written as JSON writes it.
func (m *marshaler) number(digits string) error {
	if len(digits) > maxNumberLen || !json.Valid([]byte(digits)) || strings.IndexByte("-0123456789", digits[0]) < 0 {
		return m.fail("%.40q is not a number", digits)
	}
	if integer, err := strconv.ParseInt(digits, 10, 64); err == nil {
		m.out = AppendInt(m.out, integer)
		return nil
	}
	m.noteNumber()
	m.out = appendNumber(m.out, []byte(digits))
	return nil
}

// noteNumber records that there is a number at the path.
func (m *marshaler) noteNumber() {
	m.numberAt = append(make(valuePath, 0, len(m.valuePath)), m.valuePath...)
}

// float appends a float of the given size in bits, an integral one as an integer if int64
// has it.
func (m *marshaler) float(f float64, bits int) error {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return m.fail("%v cannot be sent", f)
	}
	format := byte('f')
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) { // as encoding/json
		format = 'e'
	}
	return m.number(strconv.FormatFloat(f, format, -1, bits))
}

// scalar appends a bool, a string or a number.
func (m *marshaler) scalar(v reflect.Value) error {
	switch v.Kind() {
	case reflect.Bool:
		m.out = AppendBool(m.out, v.Bool())
	case reflect.String:
		if v.Type() == jsonNumberType {
			return m.number(v.String())
		}
		return m.text(v.String())
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		m.out = AppendInt(m.out, v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		return m.number(strconv.FormatUint(v.Uint(), 10))
	case reflect.Float32, reflect.Float64:
		return m.float(v.Float(), v.Type().Bits())
	default:
		return m.fail("a %s cannot be sent", v.Type())
	}
	return nil
}

// container appends a struct, map, slice or array, which counts as one of the
// levels. A nil map or slice becomes nil, a slice of bytes binary.
func (m *marshaler) container(v reflect.Value, levels int) error {
	switch {
	case levels <= 0:
		return m.nestedTooDeep()
	case v.Kind() == reflect.Struct:
		return m.structValue(v, levels)
	case v.Kind() != reflect.Array && v.IsNil():
		m.out = AppendNil(m.out)
		return nil
	case v.Kind() == reflect.Map:
		return m.mapValue(v, levels)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8:
		m.out = AppendBin(m.out, v.Bytes())
		return nil
	}
	m.out = AppendArray(m.out, v.Len())
	for i := range v.Len() {
		if err := m.element(item(i), v.Index(i), levels); err != nil {
			return err
		}
	}
	return nil
}

// element appends a part of a container with the given number of levels, which step leads to.
func (m *marshaler) element(step pathStep, v reflect.Value, levels int) error {
	m.valuePath = append(m.valuePath, step)
	err := m.value(v, levels-1)
	m.valuePath = m.valuePath[:len(m.valuePath)-1]
	return err
}

// mapValue appends a map, sorted by the text of its keys.
func (m *marshaler) mapValue(v reflect.Value, levels int) error {
	type pair struct {
		key   string
		value reflect.Value
	}
	pairs := make([]pair, 0, v.Len())
	for entries := v.MapRange(); entries.Next(); {
		key, err := keyText(entries.Key())
		if err != nil {
			return m.fail("%s", usercode.Text(err))
		}
		pairs = append(pairs, pair{key, entries.Value()})
	}
	slices.SortFunc(pairs, func(a, b pair) int { return strings.Compare(a.key, b.key) })

	m.out = AppendMap(m.out, len(pairs))
	for _, p := range pairs {
		if err := m.text(p.key); err != nil {
			return err
		}
		if err := m.element(pathStep{name: p.key}, p.value, levels); err != nil {
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
		return marshalText(key)
	case key.CanInt():
		return fmt.Sprint(key.Int()), nil
	case key.CanUint():
		return fmt.Sprint(key.Uint()), nil
	}
	return "", fmt.Errorf("map keys must be text or integers, not %s", key.Type())
}

// structValue appends a struct as a map, without the fields that its tags omit
// and those of nil embedded pointers.
func (m *marshaler) structValue(v reflect.Value, levels int) error {
	fields, count := fieldsOf(v.Type()), 0
	for i := range fields {
		if _, ok := fields[i].in(v); ok {
			count++
		}
	}
	m.out = AppendMap(m.out, count)
	for i := range fields {
		f := &fields[i]
		value, ok := f.in(v)
		if !ok {
			continue
		}
		if err := m.text(f.name); err != nil {
			return err
		}
		m.valuePath = append(m.valuePath, pathStep{name: f.name})
		if err := m.typed(value, f.has, levels-1); err != nil {
			return err
		}
		m.valuePath = m.valuePath[:len(m.valuePath)-1]
	}
	return nil
}
