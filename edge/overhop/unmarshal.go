package overhop

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
)

// Unmarshal decodes r into the value that v, a non-nil pointer, points to. It
// is the inverse of [Marshal].
//
// Keys that a struct does not have are ignored. A nil or empty r sets the
// target to its zero value. An integer must fit into its target. A float
// accepts an integer, or text that is a number, which is how jobs submitted as
// JSON represent fractions. An interface value of type any receives nil, bool,
// int64, string, []byte, []any or map[string]any. The result does not refer to
// r. The error is a [*CodecError] or a [*ValueError].
func Unmarshal(r Raw, v any) error {
	target := reflect.ValueOf(v)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return &ValueError{Reason: fmt.Sprintf("cannot be decoded into a %T, only into what a non-nil pointer points to", v)}
	}
	r = r.orNil()
	if err := Check(r); err != nil {
		return err
	}
	var u unmarshaler
	return u.value(r, target.Elem())
}

// Decode decodes the job's payload into the value that v points to, as
// [Unmarshal] does. Its error is a final [*FailError]: if the handler returns
// it, the job is not retried, because the payload would not change.
func (q *Quest) Decode(v any) error {
	if err := Unmarshal(q.Payload, v); err != nil {
		return &FailError{Message: "payload: " + err.Error(), Type: "invalid_params", Final: true}
	}
	return nil
}

type unmarshaler struct{ path []string }

func (u *unmarshaler) fail(format string, args ...any) error {
	return &ValueError{Path: joinPath(u.path), Reason: fmt.Sprintf(format, args...)}
}

func (u *unmarshaler) mismatch(r Raw, v reflect.Value) error {
	return u.fail("%s does not fit into a %s", r.Kind(), v.Type())
}

func (u *unmarshaler) value(r Raw, v reflect.Value) error {
	switch {
	case r.IsNil():
		v.SetZero()
		return nil
	case v.Type() == rawType:
		v.SetBytes(slices.Clone(r))
		return nil
	case v.Kind() == reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return u.value(r, v.Elem())
	}
	if into, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		text, isText := r.Text()
		if !isText {
			return u.mismatch(r, v)
		}
		if err := into.UnmarshalText(text); err != nil {
			return u.fail("%v", err)
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

func (u *unmarshaler) scalar(r Raw, v reflect.Value) error {
	n, isInt := r.Int()
	switch {
	case v.Kind() == reflect.Bool && r.Kind() == KindBool:
		b, _ := r.Bool()
		v.SetBool(b)
	case v.Kind() == reflect.String && r.Kind() == KindStr:
		s, _ := r.Str()
		v.SetString(s)
	case v.CanInt() && isInt:
		if v.OverflowInt(n) {
			return u.fail("%d does not fit into a %s", n, v.Type())
		}
		v.SetInt(n)
	case v.CanUint() && isInt:
		if n < 0 || v.OverflowUint(uint64(n)) {
			return u.fail("%d does not fit into a %s", n, v.Type())
		}
		v.SetUint(uint64(n))
	case v.CanFloat():
		return u.float(r, v)
	default:
		return u.mismatch(r, v)
	}
	return nil
}

func (u *unmarshaler) float(r Raw, v reflect.Value) error {
	if n, ok := r.Int(); ok {
		v.SetFloat(float64(n))
		return nil
	}
	text, ok := r.Str()
	if !ok {
		return u.mismatch(r, v)
	}
	f, err := strconv.ParseFloat(text, v.Type().Bits())
	if err != nil {
		return u.fail("%q is not a number that fits into a %s", text, v.Type())
	}
	v.SetFloat(f)
	return nil
}

func (u *unmarshaler) list(r Raw, v reflect.Value) error {
	if b, ok := r.Bin(); ok && v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
		v.SetBytes(slices.Clone(b))
		return nil
	}
	switch {
	case r.Kind() != KindArray:
		return u.mismatch(r, v)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.Len(), r.Len()))
	case v.Len() != r.Len():
		return u.fail("%d items do not fit into a %s", r.Len(), v.Type())
	}
	i := 0
	for item := range r.Items() {
		if err := u.element(fmt.Sprintf("[%d]", i), item, v.Index(i)); err != nil {
			return err
		}
		i++
	}
	return nil
}

func (u *unmarshaler) element(name string, r Raw, v reflect.Value) error {
	u.path = append(u.path, name)
	err := u.value(r, v)
	u.path = u.path[:len(u.path)-1]
	return err
}

func (u *unmarshaler) mapValue(r Raw, v reflect.Value) error {
	if r.Kind() != KindMap {
		return u.mismatch(r, v)
	}
	t := v.Type()
	v.Set(reflect.MakeMapWithSize(t, min(r.Len(), 1024)))
	for key, value := range r.Pairs() {
		k, item := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		if err := u.key(string(key), k); err != nil {
			return err
		}
		if err := u.element("."+string(key), value, item); err != nil {
			return err
		}
		v.SetMapIndex(k, item)
	}
	return nil
}

// key decodes a map key: text, or the digits of an integer.
func (u *unmarshaler) key(text string, k reflect.Value) error {
	if k.Kind() != reflect.String && !k.CanInt() && !k.CanUint() {
		return u.value(AppendStr(nil, text), k)
	}
	if k.Kind() == reflect.String {
		k.SetString(text)
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return u.fail("key %q does not fit into a %s", text, k.Type())
	}
	return u.scalar(AppendInt(nil, n), k)
}

func (u *unmarshaler) structValue(r Raw, v reflect.Value) error {
	if r.Kind() != KindMap {
		return u.mismatch(r, v)
	}
	fields := fieldsOf(v.Type())
	for key, value := range r.Pairs() {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == string(key) })
		if i < 0 {
			continue
		}
		at, err := fieldByIndex(v, fields[i].index)
		if err == nil {
			err = u.element("."+fields[i].name, value, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fieldByIndex returns a field of a struct. It allocates embedded structs on
// the way that are nil.
func fieldByIndex(v reflect.Value, index []int) (reflect.Value, error) {
	for n, i := range index {
		if n > 0 && v.Kind() == reflect.Pointer {
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

// toGo returns a value as plain Go values.
func toGo(r Raw) any {
	switch r.Kind() {
	case KindBool:
		b, _ := r.Bool()
		return b
	case KindInt:
		n, _ := r.Int()
		return n
	case KindStr:
		s, _ := r.Str()
		return s
	case KindBin:
		b, _ := r.Bin()
		return slices.Clone(b)
	case KindArray:
		items := make([]any, 0, min(r.Len(), 1024))
		for item := range r.Items() {
			items = append(items, toGo(item))
		}
		return items
	case KindMap:
		pairs := make(map[string]any, min(r.Len(), 1024))
		for key, value := range r.Pairs() {
			pairs[string(key)] = toGo(value)
		}
		return pairs
	}
	return nil
}
