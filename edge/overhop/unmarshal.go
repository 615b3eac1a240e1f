package overhop

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strconv"
)

// Unmarshal reads a value of the wire into what v, a non-nil pointer, points
// to: the reverse of [Marshal]. Keys that a struct does not have are ignored,
// nil and an empty r empty the target. An integer must fit its target. Into a
// float goes an integer, and text that is a number: that is how numbers with a
// fraction come from producers who speak JSON. Into an any go nil, bool,
// int64, string, []byte, []any and map[string]any. Nothing of the target lies
// in r. The error is a [*CodecError] or a [*ValueError].
func Unmarshal(r Raw, v any) error {
	target := reflect.ValueOf(v)
	if target.Kind() != reflect.Pointer || target.IsNil() {
		return &ValueError{Reason: fmt.Sprintf("cannot be read into a %T, only into what a pointer points to", v)}
	}
	if len(r) == 0 {
		r = Nil
	}
	if err := Check(r); err != nil {
		return err
	}
	var u unmarshaler
	return u.value(r, target.Elem())
}

// Decode reads the job's payload into what v points to, as [Unmarshal] does.
// Its error ends the job for good if the handler returns it as it is: no
// attempt would read more out of the same payload.
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

func (u *unmarshaler) misfit(r Raw, v reflect.Value) error {
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
			return u.misfit(r, v)
		}
		if err := into.UnmarshalText(text); err != nil {
			return u.fail("%v", err)
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Interface:
		if v.NumMethod() > 0 {
			return u.misfit(r, v)
		}
		v.Set(reflect.ValueOf(tree(r)))
		return nil
	case reflect.Slice, reflect.Array:
		return u.list(r, v)
	case reflect.Map:
		return u.mapping(r, v)
	case reflect.Struct:
		return u.structure(r, v)
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
		return u.misfit(r, v)
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
		return u.misfit(r, v)
	}
	f, err := strconv.ParseFloat(text, v.Type().Bits())
	if err != nil {
		return u.fail("%q is no number that fits into a %s", text, v.Type())
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
		return u.misfit(r, v)
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), r.Len(), r.Len()))
	case v.Len() != r.Len():
		return u.fail("%d items do not fit into a %s", r.Len(), v.Type())
	}
	i := 0
	for item := range r.Items() {
		if err := u.within(fmt.Sprintf("[%d]", i), item, v.Index(i)); err != nil {
			return err
		}
		i++
	}
	return nil
}

func (u *unmarshaler) within(name string, r Raw, v reflect.Value) error {
	u.path = append(u.path, name)
	err := u.value(r, v)
	u.path = u.path[:len(u.path)-1]
	return err
}

func (u *unmarshaler) mapping(r Raw, v reflect.Value) error {
	if r.Kind() != KindMap {
		return u.misfit(r, v)
	}
	t := v.Type()
	v.Set(reflect.MakeMapWithSize(t, min(r.Len(), 1024)))
	for key, value := range r.Pairs() {
		k, item := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		if err := u.key(string(key), k); err != nil {
			return err
		}
		if err := u.within("."+string(key), value, item); err != nil {
			return err
		}
		v.SetMapIndex(k, item)
	}
	return nil
}

// key reads a map's key: text, or an integer's digits.
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

func (u *unmarshaler) structure(r Raw, v reflect.Value) error {
	if r.Kind() != KindMap {
		return u.misfit(r, v)
	}
	fields := fieldsOf(v.Type())
	for key, value := range r.Pairs() {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == string(key) })
		if i < 0 {
			continue
		}
		at, err := reach(v, fields[i].index)
		if err == nil {
			err = u.within("."+fields[i].name, value, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// reach gives a struct's field and makes the embedded structs on the way that
// are not there yet.
func reach(v reflect.Value, index []int) (reflect.Value, error) {
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

// tree is a value of the wire as plain Go values.
func tree(r Raw) any {
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
			items = append(items, tree(item))
		}
		return items
	case KindMap:
		pairs := make(map[string]any, min(r.Len(), 1024))
		for key, value := range r.Pairs() {
			pairs[string(key)] = tree(value)
		}
		return pairs
	}
	return nil
}
