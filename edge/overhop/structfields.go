package overhop

import (
	"reflect"
	"slices"
	"strings"
)

// field is a field of a struct as encoded.
type field struct {
	name      string
	index     []int
	omitEmpty bool
	omitZero  bool
}

// fieldsOf returns the encoded fields of a struct, sorted by name. Of two
// fields with the same name the less nested one is kept; of two at the same
// level, neither.
func fieldsOf(t reflect.Type) []field {
	var fields []field
	for _, f := range reflect.VisibleFields(t) {
		tag, _ := f.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		if tag == "-" || !f.IsExported() || name == "" && f.Anonymous && isEmbedded(f.Type) || inNamedEmbed(t, f.Index) {
			continue
		}
		if name == "" {
			name = f.Name
		}
		all := strings.Split(options, ",")
		fields = append(fields, field{
			name: name, index: f.Index,
			omitEmpty: slices.Contains(all, "omitempty"), omitZero: slices.Contains(all, "omitzero"),
		})
	}
	slices.SortStableFunc(fields, func(a, b field) int {
		if c := strings.Compare(a.name, b.name); c != 0 {
			return c
		}
		return len(a.index) - len(b.index)
	})
	var kept []field
	for i := 0; i < len(fields); {
		end := i + 1
		for end < len(fields) && fields[end].name == fields[i].name {
			end++
		}
		if end == i+1 || len(fields[i].index) < len(fields[i+1].index) {
			kept = append(kept, fields[i])
		}
		i = end
	}
	return kept
}

// isEmbedded reports whether the fields of an embedded type are merged into the
// outer struct.
func isEmbedded(t reflect.Type) bool {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Kind() == reflect.Struct && t != timeType
}

// inNamedEmbed reports whether a field belongs to an embedded struct that is
// encoded as a field itself.
func inNamedEmbed(t reflect.Type, index []int) bool {
	for n := 1; n < len(index); n++ {
		outer := t.FieldByIndex(index[:n])
		name, _, _ := strings.Cut(outer.Tag.Get("json"), ",")
		if name != "" || !isEmbedded(outer.Type) {
			return true
		}
	}
	return false
}

func (f *field) omits(v reflect.Value) bool {
	if f.omitZero && v.IsZero() {
		return true
	}
	if !f.omitEmpty {
		return false
	}
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}
