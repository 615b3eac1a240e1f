package server

import "reflect"

// withLists returns v with empty slices and maps in place of nil ones, and whether there
// are any. It changes no value that others may use: what contains a nil slice or map is
// copied. Bytes are no list; what a map or an interface contains is left as it is.
func withLists(v reflect.Value) (complete reflect.Value, changed bool) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return v, false
		}
		elem, changed := withLists(v.Elem())
		if !changed {
			return v, false
		}
		p := reflect.New(elem.Type())
		p.Elem().Set(elem)
		return p, true
	case reflect.Map:
		if v.IsNil() {
			return reflect.MakeMap(v.Type()), true
		}
	case reflect.Slice:
		switch {
		case v.Type().Elem().Kind() == reflect.Uint8:
			return v, false
		case v.IsNil():
			return reflect.MakeSlice(v.Type(), 0, 0), true
		}
		return withListsIn(v, v.Len(), reflect.Value.Index, func() reflect.Value {
			c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
			reflect.Copy(c, v)
			return c
		})
	case reflect.Struct:
		return withListsIn(v, v.NumField(), reflect.Value.Field, func() reflect.Value {
			c := reflect.New(v.Type()).Elem()
			c.Set(v)
			return c
		})
	}
	return v, false
}

// withListsIn is withLists for a value with n parts, the i-th of which part returns. clone
// returns a copy of the value.
func withListsIn(v reflect.Value, n int, part func(v reflect.Value, i int) reflect.Value, clone func() reflect.Value) (complete reflect.Value, changed bool) {
	complete = v
	for i := range n {
		p := part(v, i)
		if !p.CanInterface() { // not exported
			continue
		}
		if p, ok := withLists(p); ok {
			if !changed {
				complete, changed = clone(), true
			}
			part(complete, i).Set(p)
		}
	}
	return complete, changed
}
