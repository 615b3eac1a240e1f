package web

import (
	"encoding"
	"encoding/json"
	"iter"
	"reflect"
	"strings"
	"time"
)

// field is a field of a struct as encoding/json sees it.
type field struct {
	key      string
	kind     reflect.Type
	optional bool // may be left out of an answer
}

// fieldsIn gives the fields of a struct, those of embedded structs in their
// place.
func fieldsIn(kind reflect.Type) iter.Seq[field] {
	return func(yield func(field) bool) { walk(kind, yield) }
}

func walk(kind reflect.Type, yield func(field) bool) bool {
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
			if !walk(inner, yield) {
				return false
			}
		case !f.IsExported():
		default:
			if name == "" {
				name = f.Name
			}
			if !yield(field{name, f.Type, strings.Contains(options, "omitempty") || strings.Contains(options, "omitzero")}) {
				return false
			}
		}
	}
	return true
}

// schema is a JSON schema as far as the API's document needs one.
type schema map[string]any

var (
	textual  = reflect.TypeFor[encoding.TextMarshaler]()
	rawJSON  = reflect.TypeFor[json.RawMessage]()
	instant  = reflect.TypeFor[time.Time]()
	anything = reflect.TypeFor[any]()
	written  = reflect.TypeFor[json.Marshaler]()
)

// schemaOf describes the JSON of a type. Fields that an answer always has are
// required; of a question none is.
func schemaOf(kind reflect.Type, answer bool) schema {
	switch {
	case kind == nil, kind == rawJSON, kind == anything:
		return schema{}
	case kind == instant:
		return schema{"type": "string", "format": "date-time"}
	case kind.Kind() == reflect.Pointer:
		s := schemaOf(kind.Elem(), answer)
		if one, ok := s["type"].(string); ok {
			s["type"] = []string{one, "null"}
		}
		return s
	case kind.Implements(textual), reflect.PointerTo(kind).Implements(textual):
		return schema{"type": "string"}
	case kind.Implements(written), reflect.PointerTo(kind).Implements(written):
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
		s := schema{"type": "array", "items": schemaOf(kind.Elem(), answer)}
		if answer && kind.Kind() == reflect.Slice { // Go's nil
			s["type"] = []string{"array", "null"}
		}
		return s
	case reflect.Map:
		s := schema{"type": "object", "additionalProperties": schemaOf(kind.Elem(), answer)}
		if answer {
			s["type"] = []string{"object", "null"}
		}
		return s
	case reflect.Struct:
		return objectOf(kind, answer)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return schema{"type": "integer", "minimum": 0}
	}
	return schema{"type": "integer"}
}

func objectOf(kind reflect.Type, answer bool) schema {
	properties, required := schema{}, []string{}
	for f := range fieldsIn(kind) {
		properties[f.key] = schemaOf(f.kind, answer)
		if answer && !f.optional {
			required = append(required, f.key)
		}
	}
	s := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}
