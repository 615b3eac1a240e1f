package overhop

import (
	"encoding"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/internal/usercode"
)

// Unmarshal decodes r into the value that v, a non-nil pointer, points to. It
// is the inverse of [Marshal].
//
// Keys that a struct does not have are ignored. A nil or empty r sets the
// target to its zero value. An integer must fit into its target. A float
// accepts any number, or text that is one, which is how clients without JSON
// represent fractions. An interface value of type any receives nil, bool,
// int64, float64, string, []byte, []any or map[string]any, and a json.Number for
// an integer beyond int64. The result does not refer to r. The error is a
// [*CodecError] or a [*ValueError].
func Unmarshal(r Raw, v any) error {
	target := reflect.ValueOf(v)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return &ValueError{Reason: fmt.Sprintf("cannot be decoded into a %T, only into what a non-nil pointer points to", v)}
	}
	r = r.orNil()
	if err := check(r, MaxDepth, true); err != nil {
		return err
	}
	u := unmarshalers.Get().(*unmarshaler)
	defer u.release()
	return u.value(r, target.Elem())
}

type unmarshaler struct{ valuePath }

func (u *unmarshaler) mismatch(r Raw, v reflect.Value) error {
	return u.fail("%s does not fit into a %s", r.Kind(), v.Type())
}

// value decodes r into v, which must be settable.
func (u *unmarshaler) value(r Raw, v reflect.Value) error { return u.typed(r, v, methodsOf(v.Type())) }

// typed is value for a v whose type has these methods.
func (u *unmarshaler) typed(r Raw, v reflect.Value, has *methods) error {
	switch {
	case r.IsNil():
		v.SetZero()
		return nil
	case has.isRaw:
		v.SetBytes(slices.Clone(r))
		return nil
	case v.Kind() == reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return u.value(r, v.Elem())
	}
	if has.unmarshalJSON {
		text, err := AppendJSON(nil, r)
		if err == nil {
			err = usercode.Do(func() error { return v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(text) }, "UnmarshalJSON of a %s", v.Type())
		}
		if err != nil {
			return u.fail("%s", usercode.Text(err))
		}
		return nil
	}
	if has.unmarshalText {
		text, isText := r.Text()
		if !isText {
			return u.mismatch(r, v)
		}
		err := usercode.Do(func() error { return v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText(text) }, "UnmarshalText of a %s", v.Type())
		if err != nil {
			return u.fail("%s", usercode.Text(err))
		}
		return nil
	}

	switch v.Kind() {
	case reflect.Interface:
		if v.NumMethod() > 0 {
			return u.mismatch(r, v)
		}
		v.Set(reflect.ValueOf(toGo(r)))
		return nil
	case reflect.Slice, reflect.Array:
		return u.list(r, v)
	case reflect.Map:
		return u.mapValue(r, v)
	case reflect.Struct:
		return u.structValue(r, v)
	}
	return u.scalar(r, v)
}

// scalar decodes a bool, text or an integer into v, which has a kind that is not
// a container.
func (u *unmarshaler) scalar(r Raw, v reflect.Value) error {
	n, isInt := r.Int()
	switch {
	case v.Type() == jsonNumberType && isInt:
		v.SetString(strconv.FormatInt(n, 10))
	case r.Kind() == KindNumber && !v.CanFloat():
		return u.number(r, v)
	case v.Kind() == reflect.Bool && r.Kind() == KindBool:
		b, _ := r.Bool()
		v.SetBool(b)
	case v.Kind() == reflect.String && r.Kind() == KindStr:
		s, _ := r.Str()
		v.SetString(s)
	case v.CanFloat():
		return u.float(r, v)
	case !isInt || !v.CanInt() && !v.CanUint():
		return u.mismatch(r, v)
	case v.CanInt() && !v.OverflowInt(n):
		v.SetInt(n)
	case v.CanUint() && n >= 0 && !v.OverflowUint(uint64(n)):
		v.SetUint(uint64(n))
	default:
		return u.fail("%d does not fit into a %s", n, v.Type())
	}
	return nil
}

// number decodes a number into v, which is not a float: into a json.Number, or, if it is an
// integer, into an unsigned one.
func (u *unmarshaler) number(r Raw, v reflect.Value) error {
	digits, _ := r.digits()
	if v.Type() == jsonNumberType {
		v.SetString(digits)
		return nil
	}
	if v.CanUint() {
		if n, err := strconv.ParseUint(digits, 10, v.Type().Bits()); err == nil {
			v.SetUint(n)
			return nil
		}
	}
	return u.fail("%s does not fit into a %s", digits, v.Type())
}

// digits returns a number as JSON writes it. ok is false if r is not a number.
func (r Raw) digits() (digits string, ok bool) {
	text, ok := r.body(KindNumber)
	return string(text), ok
}

// isInteger reports whether a number is written without fraction and exponent.
func isInteger(digits string) bool { return !strings.ContainsAny(digits, ".eE") }

// float decodes a number, or text that is one, into a float.
func (u *unmarshaler) float(r Raw, v reflect.Value) error {
	if n, ok := r.Int(); ok {
		v.SetFloat(float64(n))
		return nil
	}
	text, ok := r.digits()
	if !ok {
		text, ok = r.Str()
	}
	if !ok {
		return u.mismatch(r, v)
	}
	number, err := strconv.ParseFloat(text, v.Type().Bits())
	if err != nil {
		return u.fail("%q is not a number that fits into a %s", text, v.Type())
	}
	v.SetFloat(number)
	return nil
}

// list decodes an array into a slice or into a Go array of the same length, or
// binary into a slice of bytes.
func (u *unmarshaler) list(r Raw, v reflect.Value) error {
	isSlice := v.Kind() == reflect.Slice
	if b, ok := r.Bin(); ok && isSlice && v.Type().Elem().Kind() == reflect.Uint8 {
		v.SetBytes(slices.Clone(b))
		return nil
	}
	if text, ok := r.Str(); ok && isSlice && v.Type().Elem().Kind() == reflect.Uint8 { // from a client that sends JSON
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return u.fail("text is not the base64 of bytes: %v", err)
		}
		v.SetBytes(b)
		return nil
	}
	switch {
	case r.Kind() != KindArray:
		return u.mismatch(r, v)
	case isSlice:
		v.Set(reflect.MakeSlice(v.Type(), r.Len(), r.Len()))
	case v.Len() != r.Len():
		return u.fail("%d items do not fit into a %s", r.Len(), v.Type())
	}
	i := 0
	for value := range r.Items() {
		if err := u.element(item(i), value, v.Index(i)); err != nil {
			return err
		}
		i++
	}
	return nil
}

// element decodes r into v, a part of a container, which step leads to.
func (u *unmarshaler) element(step pathStep, r Raw, v reflect.Value) error {
	u.valuePath = append(u.valuePath, step)
	err := u.value(r, v)
	u.valuePath = u.valuePath[:len(u.valuePath)-1]
	return err
}

// maxSizeHint is the largest number of items or pairs for which memory is
// allocated before they are decoded.
const maxSizeHint = 1024

// mapValue decodes a map into a new Go map.
func (u *unmarshaler) mapValue(r Raw, v reflect.Value) error {
	if r.Kind() != KindMap {
		return u.mismatch(r, v)
	}
	mapType := v.Type()
	v.Set(reflect.MakeMapWithSize(mapType, min(r.Len(), maxSizeHint)))
	for name, value := range r.Pairs() {
		key, item := reflect.New(mapType.Key()).Elem(), reflect.New(mapType.Elem()).Elem()
		if err := u.key(string(name), key); err != nil {
			return err
		}
		if err := u.element(pathStep{name: string(name)}, value, item); err != nil {
			return err
		}
		v.SetMapIndex(key, item)
	}
	return nil
}

// key decodes the text of a map key into a string, an integer, or a type that
// has UnmarshalText.
func (u *unmarshaler) key(text string, v reflect.Value) error {
	switch {
	case v.Kind() == reflect.String:
		v.SetString(text)
		return nil
	case v.CanInt() || v.CanUint():
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return u.fail("key %q does not fit into a %s", text, v.Type())
		}
		return u.scalar(AppendInt(nil, n), v)
	}
	return u.value(AppendStr(nil, text), v)
}

// structValue decodes a map into the fields of a struct. It ignores the keys of
// other fields, and leaves fields without a key as they are.
func (u *unmarshaler) structValue(r Raw, v reflect.Value) error {
	if r.Kind() != KindMap {
		return u.mismatch(r, v)
	}
	fields, next := fieldsOf(v.Type()), 0
	for key, value := range r.Pairs() {
		i := indexFrom(fields, next, key)
		if i < 0 {
			continue
		}
		f := &fields[i]
		target, err := fieldByIndex(v, f.index)
		if err != nil {
			return err
		}
		u.valuePath = append(u.valuePath, pathStep{name: f.name})
		if err := u.typed(value, target, f.has); err != nil {
			return err
		}
		u.valuePath = u.valuePath[:len(u.valuePath)-1]
		next = i + 1
	}
	return nil
}

// indexFrom returns the index of the field with this name, -1 if there is none. The search
// begins at an index, because most maps have the order of the fields.
func indexFrom(fields []field, begin int, name []byte) int {
	isNamed := func(f field) bool { return f.name == string(name) }
	if i := slices.IndexFunc(fields[begin:], isNamed); i >= 0 {
		return begin + i
	}
	return slices.IndexFunc(fields[:begin], isNamed)
}

// fieldByIndex returns the field of a struct with an index as in
// [reflect.StructField]. Unlike [reflect.Value.FieldByIndex] it allocates nil
// embedded structs on the way.
func fieldByIndex(v reflect.Value, index []int) (reflect.Value, error) {
	for level, i := range index {
		if level > 0 && v.Kind() == reflect.Pointer {
			if v.IsNil() && !v.CanSet() {
				return v, &ValueError{Reason: fmt.Sprintf("embedded %s is nil and not exported", v.Type())}
			}
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v, nil
}

// toGo returns a value as the plain Go values that [Unmarshal] stores in an any,
// nil for nil.
func toGo(r Raw) any {
	switch r.Kind() {
	case KindBool:
		b, _ := r.Bool()
		return b
	case KindInt:
		n, _ := r.Int()
		return n
	case KindNumber:
		digits, _ := r.digits()
		if f, err := strconv.ParseFloat(digits, 64); err == nil && !isInteger(digits) {
			return f
		}
		return json.Number(digits)
	case KindStr:
		s, _ := r.Str()
		return s
	case KindBin:
		b, _ := r.Bin()
		return slices.Clone(b)
	case KindArray:
		items := make([]any, 0, min(r.Len(), maxSizeHint))
		for item := range r.Items() {
			items = append(items, toGo(item))
		}
		return items
	case KindMap:
		pairs := make(map[string]any, min(r.Len(), maxSizeHint))
		for key, value := range r.Pairs() {
			pairs[string(key)] = toGo(value)
		}
		return pairs
	}
	return nil
}
