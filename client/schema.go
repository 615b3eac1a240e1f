package client

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// Schema returns a JSON Schema of draft 2020-12 that the params of a job match if they are a T,
// a struct or a map. It can be set with 'yardmaster schema set', so that the cluster refuses
// other params:
//
//   - fields have the names of their json tags; one without omitempty and omitzero is required,
//     and other properties are allowed;
//   - pointers, slices and maps may be null;
//   - a [time.Time] is text of the format date-time, an [encoding.TextMarshaler] any text;
//   - integers have the bounds of their type;
//   - an interface may hold anything;
//   - the tag `jsonschema:"enum=a|b"` lists the values of a string.
//
// The error names the field of a type that cannot be sent. []byte is one of them: it is sent as
// binary, and params with binary match no schema.
func Schema[T any]() (json.RawMessage, error) {
	root := reflect.TypeFor[T]()
	for root.Kind() == reflect.Pointer {
		root = root.Elem()
	}
	if root.Kind() != reflect.Struct && root.Kind() != reflect.Map || root == timeType {
		return nil, fmt.Errorf("schema of %s: params with a schema are a struct or a map", root)
	}
	g := &schemaGenerator{names: map[reflect.Type]string{}, definitions: map[string]any{}}
	schema, err := g.notNull(root, root.String())
	if err != nil {
		return nil, fmt.Errorf("schema of %w", err)
	}
	schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	if len(g.definitions) > 0 {
		schema["$defs"] = g.definitions
	}
	return json.Marshal(schema)
}

// schemaGenerator makes the schemas of types. Named structs, which may contain themselves, are
// definitions.
type schemaGenerator struct {
	names       map[reflect.Type]string // of the definitions
	definitions map[string]any
}

type jsonSchema map[string]any

var (
	timeType       = reflect.TypeFor[time.Time]()
	textType       = reflect.TypeFor[encoding.TextMarshaler]()
	rawType        = reflect.TypeFor[overhop.Raw]()
	jsonNumberType = reflect.TypeFor[json.Number]()
)

// schemaOf returns the schema of a type. at is its place, for errors.
func (g *schemaGenerator) schemaOf(t reflect.Type, at string) (jsonSchema, error) {
	nullable := false
	for t.Kind() == reflect.Pointer {
		t, nullable = t.Elem(), true
	}
	schema, err := g.notNull(t, at)
	isText := t.Implements(textType)
	if nullable || (t.Kind() == reflect.Slice || t.Kind() == reflect.Map) && !isText && t != rawType {
		schema = orNull(schema)
	}
	return schema, err
}

// orNull returns the schema that also allows null.
func orNull(schema jsonSchema) jsonSchema {
	if kind, ok := schema["type"].(string); ok && schema["enum"] == nil {
		schema["type"] = []string{kind, "null"}
		return schema
	}
	if len(schema) == 0 {
		return schema
	}
	return jsonSchema{"anyOf": []any{schema, jsonSchema{"type": "null"}}}
}

// notNull is schemaOf for a type that is not a pointer, without null.
func (g *schemaGenerator) notNull(t reflect.Type, at string) (jsonSchema, error) {
	switch {
	case t == timeType:
		return jsonSchema{"type": "string", "format": "date-time"}, nil
	case t == rawType:
		return jsonSchema{}, nil
	case t == jsonNumberType:
		return jsonSchema{"type": "number"}, nil
	case t.Kind() != reflect.Interface && t.Implements(textType):
		return jsonSchema{"type": "string"}, nil
	}
	switch t.Kind() {
	case reflect.Bool:
		return jsonSchema{"type": "boolean"}, nil
	case reflect.String:
		return jsonSchema{"type": "string"}, nil
	case reflect.Float32, reflect.Float64:
		return jsonSchema{"type": "number"}, nil
	case reflect.Interface:
		return jsonSchema{}, nil
	case reflect.Slice, reflect.Array:
		return g.array(t, at)
	case reflect.Map:
		return g.mapOf(t, at)
	case reflect.Struct:
		return g.structOf(t, at)
	}
	if schema := integerSchema(t); schema != nil {
		return schema, nil
	}
	return nil, fmt.Errorf("%s: a %s cannot be sent", at, t)
}

// integerSchema returns the schema of an integer type with its bounds, or nil if t is none.
// Those of 64 bits have no upper bound, because JSON's readers may round it.
func integerSchema(t reflect.Type) jsonSchema {
	schema := jsonSchema{"type": "integer"}
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
	case reflect.Int8, reflect.Int16, reflect.Int32:
		limit := int64(1) << (t.Bits() - 1)
		schema["minimum"], schema["maximum"] = -limit, limit-1
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		schema["minimum"], schema["maximum"] = 0, uint64(math.MaxUint64)>>(64-t.Bits())
	case reflect.Uint, reflect.Uint64, reflect.Uintptr:
		schema["minimum"] = 0
	default:
		return nil
	}
	return schema
}

func (g *schemaGenerator) array(t reflect.Type, at string) (jsonSchema, error) {
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
		return nil, fmt.Errorf("%s: a %s is sent as binary, and params with binary match no schema; use a string", at, t)
	}
	items, err := g.schemaOf(t.Elem(), at+"[]")
	schema := jsonSchema{"type": "array", "items": items}
	if t.Kind() == reflect.Array {
		schema["minItems"], schema["maxItems"] = t.Len(), t.Len()
	}
	return schema, err
}

func (g *schemaGenerator) mapOf(t reflect.Type, at string) (jsonSchema, error) {
	key := t.Key()
	isInteger := integerSchema(key) != nil && key.Kind() != reflect.Uintptr
	if key.Kind() != reflect.String && !isInteger && !key.Implements(textType) {
		return nil, fmt.Errorf("%s: the keys of a map must be text or integers, not %s", at, key)
	}
	values, err := g.schemaOf(t.Elem(), at+"{}")
	return jsonSchema{"type": "object", "additionalProperties": values}, err
}

// structOf returns the schema of a struct or, of a named one, a reference to its definition.
func (g *schemaGenerator) structOf(t reflect.Type, at string) (jsonSchema, error) {
	if t.Name() == "" {
		return g.fields(t, at)
	}
	name, known := g.names[t]
	if !known {
		base, _, _ := strings.Cut(t.Name(), "[") // without the arguments of a generic type
		base = strings.Map(wordOnly, base)
		name = base
		for n := 2; g.definitions[name] != nil; n++ {
			name = fmt.Sprintf("%s_%d", base, n)
		}
		g.names[t], g.definitions[name] = name, jsonSchema{} // before its fields, which may refer to it
		definition, err := g.fields(t, at)
		if err != nil {
			return nil, err
		}
		g.definitions[name] = definition
	}
	return jsonSchema{"$ref": "#/$defs/" + name}, nil
}

// wordOnly replaces what has a meaning in a reference.
func wordOnly(r rune) rune {
	if r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
		return r
	}
	return '_'
}

// fields returns the schema of a struct with its fields.
func (g *schemaGenerator) fields(t reflect.Type, at string) (jsonSchema, error) {
	properties, required := jsonSchema{}, []string{}
	for _, f := range overhop.StructFields(t) {
		place := at + "." + f.Name
		property, err := g.schemaOf(f.Type, place)
		if err == nil {
			property, err = withEnum(property, f, place)
		}
		if err != nil {
			return nil, err
		}
		properties[f.Name] = property
		if !f.Optional {
			required = append(required, f.Name)
		}
	}
	return jsonSchema{"type": "object", "properties": properties, "required": required}, nil
}

// withEnum returns the schema of a field, restricted to the values that its tag lists.
func withEnum(schema jsonSchema, f overhop.StructField, at string) (jsonSchema, error) {
	list, found := strings.CutPrefix(f.Tag.Get("jsonschema"), "enum=")
	if !found {
		return schema, nil
	}
	t, nullable := f.Type, false
	for t.Kind() == reflect.Pointer {
		t, nullable = t.Elem(), true
	}
	if t.Kind() != reflect.String {
		return nil, fmt.Errorf("%s: the tag enum is for strings, not for a %s", at, t)
	}
	enum := jsonSchema{"type": "string", "enum": strings.Split(list, "|")}
	if nullable {
		return orNull(enum), nil
	}
	return enum, nil
}
