package payloadschema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// Limits of the texts of a violation, in bytes.
const (
	maxPath   = 256
	maxReason = 200
)

// violationOf returns the cause of a failed validation that tells most: where a value has to
// match one of several schemas, the failure of the only one for values of its type, if there
// is one; otherwise the failure of the value that comes first in the order of the paths.
func violationOf(failure *jsonschema.ValidationError) *Violation {
	for len(failure.Causes) > 0 {
		causes := failure.Causes
		switch k := failure.ErrorKind.(type) {
		case *kind.PropertyNames: // the cause is about the name
			v := newViolation(failure)
			v.Reason = cut("property name "+strconv.Quote(cut(k.Property, maxReason/4))+" "+violationOf(causes[0]).Reason, maxReason)
			return v
		case *kind.AnyOf, *kind.OneOf:
			causes = slices.DeleteFunc(slices.Clone(causes), func(cause *jsonschema.ValidationError) bool {
				return isMismatchOfType(cause, failure)
			})
			if len(causes) != 1 {
				return newViolation(failure)
			}
		}
		failure = slices.MinFunc(causes, func(a, b *jsonschema.ValidationError) int {
			return cmp.Or(slices.Compare(a.InstanceLocation, b.InstanceLocation), cmp.Compare(reason(a), reason(b)))
		})
	}
	return newViolation(failure)
}

// isMismatchOfType reports whether the cause of a failure is that its value has another type
// than an alternative wants, also if that only refers to another schema.
func isMismatchOfType(cause, failure *jsonschema.ValidationError) bool {
	for len(cause.Causes) == 1 {
		cause = cause.Causes[0]
	}
	_, mismatch := cause.ErrorKind.(*kind.Type)
	return mismatch && len(cause.InstanceLocation) == len(failure.InstanceLocation)
}

func newViolation(failure *jsonschema.ValidationError) *Violation {
	return &Violation{pointer(failure.InstanceLocation), reason(failure)}
}

var escaper = strings.NewReplacer("~", "~0", "/", "~1")

// pointer returns the JSON Pointer to a place, cut after maxPath bytes.
func pointer(place []string) string {
	var b strings.Builder
	for _, name := range place {
		b.WriteByte('/')
		_, _ = escaper.WriteString(&b, name) // a Builder never fails
		if b.Len() > maxPath {
			break
		}
	}
	return cut(b.String(), maxPath)
}

// cut returns text, or its beginning if it is longer than size bytes.
func cut(text string, size int) string {
	if len(text) <= size {
		return text
	}
	return strings.ToValidUTF8(text[:size-len("…")], "") + "…"
}

// reason says what is wrong with a value, without the value itself, which may be a secret.
func reason(failure *jsonschema.ValidationError) string {
	return cut(reasonOf(failure.ErrorKind), maxReason)
}

func reasonOf(failure jsonschema.ErrorKind) string {
	switch k := failure.(type) {
	case *kind.Type:
		return "must be " + typeNames(k.Want)
	case *kind.Required:
		return "must have " + properties(k.Missing)
	case *kind.AdditionalProperties:
		return "must not have " + properties(k.Properties)
	case *kind.FalseSchema:
		return "is not allowed"
	case *kind.Const:
		return "must be " + jsonText(k.Want)
	case *kind.Enum:
		return "must be " + enumeration(k.Want)
	case *kind.Format:
		if k.Want == "regex" {
			return fmt.Sprintf("must be a regular expression: %v", k.Err)
		}
		return fmt.Sprintf("does not have the format %s", k.Want)
	case *kind.Pattern:
		return "does not match the pattern " + k.Want
	case *kind.AnyOf:
		return "matches none of the schemas of anyOf"
	case *kind.OneOf:
		if len(k.Subschemas) > 0 {
			return "matches more than one of the schemas of oneOf"
		}
		return "matches none of the schemas of oneOf"
	case *kind.Not:
		return "matches a schema that it must not match"
	case *kind.DependentRequired:
		return fmt.Sprintf("must have %s because it has %s", properties(k.Missing), strconv.Quote(k.Prop))
	case *kind.UniqueItems:
		return fmt.Sprintf("has equal items, %d and %d", k.Duplicates[0], k.Duplicates[1])
	case *kind.Contains:
		return "has no item of the kind that it must contain"
	case *kind.RefCycle:
		return "cannot be checked: the schema refers to itself for the same value"
	}
	return boundReason(failure)
}

// boundReason is reasonOf for values that are too small or too large.
func boundReason(failure jsonschema.ErrorKind) string {
	switch k := failure.(type) {
	case *kind.Minimum:
		return "must be at least " + number(k.Want)
	case *kind.Maximum:
		return "must be at most " + number(k.Want)
	case *kind.ExclusiveMinimum:
		return "must be greater than " + number(k.Want)
	case *kind.ExclusiveMaximum:
		return "must be less than " + number(k.Want)
	case *kind.MultipleOf:
		return "must be a multiple of " + number(k.Want)
	case *kind.MinLength:
		return fmt.Sprintf("must have at least %d characters", k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("must have at most %d characters", k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("must have at least %d items", k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("must have at most %d items", k.Want)
	case *kind.MinProperties:
		return fmt.Sprintf("must have at least %d properties", k.Want)
	case *kind.MaxProperties:
		return fmt.Sprintf("must have at most %d properties", k.Want)
	case *kind.MinContains:
		return fmt.Sprintf("has fewer than %d items of the kind that it must contain", k.Want)
	case *kind.MaxContains:
		return fmt.Sprintf("has more than %d items of a kind", k.Want)
	}
	return "does not match" + keyword(failure)
}

// keyword names the keyword of a failure for which reasonOf has no text.
func keyword(failure jsonschema.ErrorKind) string {
	if path := failure.KeywordPath(); len(path) > 0 {
		return " " + path[0]
	}
	return " the schema"
}

// typeNames returns the names of JSON types with their articles, null last.
func typeNames(types []string) string {
	var names []string
	for _, name := range types {
		switch name {
		case "null":
		case "array", "object", "integer":
			names = append(names, "an "+name)
		default:
			names = append(names, "a "+name)
		}
	}
	if slices.Contains(types, "null") {
		names = append(names, "null")
	}
	return strings.Join(names, " or ")
}

// properties returns the names of properties, in order.
func properties(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = strconv.Quote(name)
	}
	slices.Sort(quoted)
	noun := "the property "
	if len(names) > 1 {
		noun = "the properties "
	}
	return noun + strings.Join(quoted, ", ")
}

func enumeration(values []any) string {
	if len(values) == 1 {
		return jsonText(values[0])
	}
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = jsonText(value)
	}
	return "one of " + strings.Join(texts, ", ")
}

func jsonText(value any) string {
	text, _ := json.Marshal(value) // it was read from JSON
	return string(text)
}

// number returns a number of a schema as decimal digits.
func number(r *big.Rat) string {
	if r.IsInt() {
		return r.Num().String()
	}
	f, _ := r.Float64()
	return strconv.FormatFloat(f, 'g', -1, 64)
}

// findReference returns the place of the reference to url in a schema, or nil. Of several it
// returns the first in the order of the paths.
func findReference(value any, url string, at []string) []string {
	switch value := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			here := append(slices.Clone(at), name)
			reference, isText := value[name].(string)
			reference, _, _ = strings.Cut(reference, "#")
			if isText && strings.HasPrefix(name, "$") && reference != "" && strings.HasSuffix(url, reference) {
				return here
			}
			if place := findReference(value[name], url, here); place != nil {
				return place
			}
		}
	case []any:
		for i, part := range value {
			if place := findReference(part, url, append(slices.Clone(at), strconv.Itoa(i))); place != nil {
				return place
			}
		}
	}
	return nil
}
