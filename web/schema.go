package web

import (
	"cmp"
	"encoding"
	"encoding/json"
	"reflect"
	"strings"
	"time"
)

// field is a field of a struct as encoding/json sees it.
type field struct {
	key      string
	kind     reflect.Type
	optional bool // may be missing in a reply
}

// fieldsOf returns the fields of a struct. The fields of an embedded struct appear in
// its place. It returns nil for other types, and for a nil type.
func fieldsOf(kind reflect.Type) (fields []field) {
	if kind == nil || kind.Kind() != reflect.Struct {
		return nil
	}
	for i := range kind.NumField() {
		f := kind.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner := f.Type
		for inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case name == "-":
		case f.Anonymous && name == "" && inner.Kind() == reflect.Struct:
			fields = append(fields, fieldsOf(inner)...)
		case !f.IsExported():
		default:
			optional := strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")
			fields = append(fields, field{cmp.Or(name, f.Name), f.Type, optional})
		}
	}
	return fields
}

// schema is a JSON schema or another object of the OpenAPI document.
type schema map[string]any

var (
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
	rawJSON       = reflect.TypeFor[json.RawMessage]()
	timeType      = reflect.TypeFor[time.Time]()
	anyType       = reflect.TypeFor[any]()
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
)

// setting is implemented by types whose JSON is that of another type.
type setting interface{ Type() reflect.Type }

// schemaOf returns the schema of the JSON of a type, {} if it may be any JSON. reply means
// that the JSON is part of a reply: then the fields that are always there are required.
func schemaOf(kind reflect.Type, reply bool) schema {
	if kind != nil && kind.Implements(reflect.TypeFor[setting]()) {
		return schemaOf(reflect.Zero(kind).Interface().(setting).Type(), reply)
	}
	switch {
	case kind == nil, kind == rawJSON, kind == anyType:
		return schema{}
	case kind == timeType:
		return schema{"type": "string", "format": "date-time"}
	case kind.Kind() == reflect.Pointer:
		s := schemaOf(kind.Elem(), reply)
		if one, ok := s["type"].(string); ok {
			s["type"] = []string{one, "null"}
		}
		return s
	case kind.Implements(textMarshaler), reflect.PointerTo(kind).Implements(textMarshaler):
		return schema{"type": "string"}
	case kind.Implements(jsonMarshaler), reflect.PointerTo(kind).Implements(jsonMarshaler):
		return schema{}
	}
	switch kind.Kind() {
	case reflect.Bool:
		return schema{"type": "boolean"}
	case reflect.String:
		return schema{"type": "string"}
	case reflect.Float32, reflect.Float64:
		return schema{"type": "number"}
	case reflect.Slice, reflect.Array:
		if kind.Elem().Kind() == reflect.Uint8 {
			return schema{"type": "string", "contentEncoding": "base64"}
		}
		return schema{"type": "array", "items": schemaOf(kind.Elem(), reply)}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": schemaOf(kind.Elem(), reply)}
	case reflect.Struct:
		return objectOf(kind, reply)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return schema{"type": "integer", "minimum": 0}
	}
	return schema{"type": "integer"}
}

// objectOf returns the schema of a struct.
func objectOf(kind reflect.Type, reply bool) schema {
	properties, required := schema{}, []string{}
	for _, f := range fieldsOf(kind) {
		properties[f.key] = schemaOf(f.kind, reply)
		if reply && !f.optional {
			required = append(required, f.key)
		}
	}
	s := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}
