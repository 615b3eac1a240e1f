package overhop

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// field is a field of a struct as encoded.
type field struct {
	name      string
	index     []int
	omitEmpty bool
	omitZero  bool
	has       *methods // of its type
}

// in returns the field of a struct. ok is false if it is left out of the encoding: its tag omits
// it, or it is in a nil embedded pointer.
func (f *field) in(v reflect.Value) (value reflect.Value, ok bool) {
	if len(f.index) == 1 {
		value = v.Field(f.index[0])
	} else {
		var err error
		if value, err = v.FieldByIndexErr(f.index); err != nil {
			return value, false
		}
	}
	return value, !f.omits(value)
}

// methods are what a type has that decides how its values are converted.
type methods struct {
	isRaw, isTime                bool
	marshalJSON, marshalText     bool
	pointerMarshalJSON           bool // a pointer to a value has MarshalJSON, and the value is no pointer
	unmarshalJSON, unmarshalText bool // of a pointer to a value
}

// knownMethods holds the *methods of types that were encoded or decoded before, by type.
var knownMethods sync.Map

// methodsOf returns the methods of a type.
func methodsOf(t reflect.Type) *methods {
	if known, ok := knownMethods.Load(t); ok {
		return known.(*methods)
	}
	pointer, isPointer, isInterface := reflect.PointerTo(t), t.Kind() == reflect.Pointer, t.Kind() == reflect.Interface
	has := &methods{
		isRaw: t == rawType, isTime: t == timeType,
		marshalJSON:        !isInterface && t.Implements(jsonType),
		pointerMarshalJSON: !isPointer && pointer.Implements(jsonType),
		marshalText:        !isInterface && t.Implements(textType),
		unmarshalJSON:      t != timeType && pointer.Implements(unmarshalJSONType),
		unmarshalText:      pointer.Implements(unmarshalTextType),
	}
	knownMethods.Store(t, has)
	return has
}

// knownFields holds the fields of the struct types that were encoded or decoded before, by
// type.
var knownFields sync.Map

// fieldsOf returns the encoded fields of a struct type, sorted by name, to be read.
func fieldsOf(t reflect.Type) []field {
	if known, ok := knownFields.Load(t); ok {
		return known.([]field)
	}
	fields := findFields(t)
	knownFields.Store(t, fields)
	return fields
}

// findFields is fieldsOf for a type that is not known. Of two fields with the same name the
// less nested one is kept; of two at the same level, neither.
func findFields(t reflect.Type) []field {
	var fields []field
	for _, f := range reflect.VisibleFields(t) {
		tag := f.Tag.Get("json")
		name, options, _ := strings.Cut(tag, ",")
		isMerged := name == "" && f.Anonymous && isEmbedded(f.Type)
		if tag == "-" || !f.IsExported() || isMerged || inNamedEmbed(t, f.Index) {
			continue
		}
		optionList := strings.Split(options, ",")
		fields = append(fields, field{
			name: cmp.Or(name, f.Name), index: f.Index,
			omitEmpty: slices.Contains(optionList, "omitempty"), omitZero: slices.Contains(optionList, "omitzero"),
			has: methodsOf(f.Type),
		})
	}

	slices.SortStableFunc(fields, func(a, b field) int {
		return cmp.Or(strings.Compare(a.name, b.name), cmp.Compare(len(a.index), len(b.index)))
	})
	var kept []field
	for i, f := range fields {
		isHidden := i > 0 && fields[i-1].name == f.name
		isAmbiguous := i+1 < len(fields) && fields[i+1].name == f.name && len(fields[i+1].index) == len(f.index)
		if !isHidden && !isAmbiguous {
			kept = append(kept, f)
		}
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

// inNamedEmbed reports whether the field of t with the given index belongs to an
// embedded struct that is encoded as a field itself.
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

// omits reports whether the field is left out of the encoding if v is its value.
func (f *field) omits(v reflect.Value) bool {
	switch {
	case f.omitZero && v.IsZero():
		return true
	case !f.omitEmpty:
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

// StructField is a field of a struct as [Marshal] encodes it.
type StructField struct {
	Name     string // the key in the map
	Type     reflect.Type
	Tag      reflect.StructTag
	Optional bool // the key may be missing
}

// StructFields returns the fields of a struct type as [Marshal] encodes them, by name.
func StructFields(t reflect.Type) []StructField {
	fields := fieldsOf(t)
	shown := make([]StructField, len(fields))
	for i, f := range fields {
		field := t.FieldByIndex(f.index)
		shown[i] = StructField{f.name, field.Type, field.Tag, f.omitEmpty || f.omitZero || inPointer(t, f.index)}
	}
	return shown
}

// inPointer reports whether a field is in an embedded struct that may be nil.
func inPointer(t reflect.Type, index []int) bool {
	for n := 1; n < len(index); n++ {
		if t.FieldByIndex(index[:n]).Type.Kind() == reflect.Pointer {
			return true
		}
	}
	return false
}
