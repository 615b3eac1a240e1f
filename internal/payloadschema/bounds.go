package payloadschema

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Bounds of one check. A step is the application of a schema, or of one of its
// alternatives, to a value.
const (
	minSteps     = 10_000
	stepsPerByte = 16 // of the payload
)

// errTooManySteps ends a check by a panic, because the library has no other way.
var errTooManySteps = errors.New("too many steps")

// steps counts the steps of a check.
type steps struct{ left int }

// count makes s count the applications of a compiled schema and of all schemas that it uses.
// It returns false if one of them is in another document.
func (s *steps) count(root *jsonschema.Schema) bool {
	seen := map[*jsonschema.Schema]bool{root: true}
	for pending := []*jsonschema.Schema{root}; len(pending) > 0; {
		schema := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		if !strings.HasPrefix(schema.Location, schemaURL+"#") {
			return false
		}
		used := usedBy(schema)
		for _, next := range used {
			if !seen[next] {
				seen[next] = true
				pending = append(pending, next)
			}
		}
		s.countApplications(schema, 1+len(used))
	}
	return true
}

// countApplications makes s count the applications of one schema as so many steps each. The
// library checks the format before it applies other schemas, also if there will be errors.
func (s *steps) countApplications(schema *jsonschema.Schema, weight int) {
	if schema.Enum != nil {
		weight += len(schema.Enum.Values)
	}
	patterns, format := len(schema.PatternProperties), schema.Format
	counting := &jsonschema.Format{Validate: func(value any) error {
		s.left -= weight
		if object, ok := value.(map[string]any); ok {
			s.left -= patterns * len(object)
		}
		if s.left < 0 {
			panic(errTooManySteps)
		}
		if format != nil {
			return format.Validate(value)
		}
		return nil
	}}
	if format != nil {
		counting.Name = format.Name
	}
	schema.Format = counting
}

// usedBy returns the schemas that a schema applies to the same value or to parts of it.
func usedBy(s *jsonschema.Schema) (used []*jsonschema.Schema) {
	used = slices.Concat(s.AllOf, s.AnyOf, s.OneOf, s.PrefixItems,
		[]*jsonschema.Schema{s.Ref, s.Not, s.If, s.Then, s.Else, s.PropertyNames, s.Contains, s.Items2020, s.UnevaluatedProperties, s.UnevaluatedItems, s.ContentSchema},
		slices.Collect(maps.Values(s.Properties)), slices.Collect(maps.Values(s.PatternProperties)), slices.Collect(maps.Values(s.DependentSchemas)))
	if s.DynamicRef != nil {
		used = append(used, s.DynamicRef.Ref)
	}
	if additional, ok := s.AdditionalProperties.(*jsonschema.Schema); ok {
		used = append(used, additional)
	}
	for _, dependency := range s.Dependencies {
		if schema, ok := dependency.(*jsonschema.Schema); ok {
			used = append(used, schema)
		}
	}
	return slices.DeleteFunc(used, func(s *jsonschema.Schema) bool { return s == nil })
}

// maxPatternSize is the size of all patterns of a schema together, and of the patterns that
// a payload may contain where the format is regex: the instructions of their programs, of
// which each takes 40 bytes.
const maxPatternSize = 50_000

var errPatternSize = fmt.Errorf("the patterns are too large: repetitions multiply their size, which is at most %d instructions", maxPatternSize)

// patterns compiles patterns.
type patterns struct{ left int }

func (p *patterns) compile(pattern string) (jsonschema.Regexp, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, err
	}
	if p.left -= programSize(parsed); p.left < 0 {
		return nil, errPatternSize
	}
	return regexp.Compile(pattern)
}

// programSize estimates the number of instructions of a pattern's program, up to a little
// more than maxPatternSize.
func programSize(r *syntax.Regexp) int {
	size := 1 + len(r.Rune)
	for _, sub := range r.Sub {
		size += programSize(sub)
		if size > maxPatternSize {
			break
		}
	}
	if r.Op == syntax.OpRepeat {
		size *= max(r.Min+1, r.Max)
	}
	return min(size, maxPatternSize+1)
}

// maxDigits is the most digits of a number in a payload or a schema. The library computes with exact fractions, whose size is
// that of the number written without an exponent.
const maxDigits = 1000

var hugeReason = fmt.Sprintf("is a number of more than %d digits", maxDigits)

// hugeNumber returns the place of a number beyond the bounds in a value at the given place,
// or nil.
func hugeNumber(value any, at []string) (place []string) {
	switch value := value.(type) {
	case map[string]any:
		for name, part := range value {
			if place := hugeNumber(part, append(at, name)); place != nil {
				return place
			}
		}
	case []any:
		for i, part := range value {
			if place := hugeNumber(part, append(at, strconv.Itoa(i))); place != nil {
				return place
			}
		}
	case json.Number:
		if isHuge(string(value)) {
			return append([]string{}, at...)
		}
	}
	return nil
}

// isHuge reports whether a number of JSON has more than maxDigits digits without an exponent.
func isHuge(number string) bool {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(number), "e")
	if exponent == "" {
		return len(mantissa) > maxDigits
	}
	power, err := strconv.Atoi(exponent)
	return err != nil || power > maxDigits || power < -maxDigits || len(mantissa) > maxDigits
}
