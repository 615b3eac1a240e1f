package job

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// elsewhere is what other job systems' producers call our keys. Whoever moves
// here would get the yard's defaults instead of what was meant.
var elsewhere = map[string]string{
	"function_name":       "function",
	"job_id":              "id",
	"max_retries":         "max_attempts",
	"job_timeout_seconds": "timeout_ms",
	"timeout":             "timeout_ms",
	"result_ttl_seconds":  "result_ttl_ms",
	"defer_until":         "run_at",
	"defer_by_seconds":    "delay_ms",
	"delay":               "delay_ms",
	"unique_ttl_seconds":  "unique_ttl_ms",
	"rate_limit_seconds":  "rate_limit_ms",
	"debounce_seconds":    "debounce_ms",
	"limit":               "concurrency_limit",
}

// ReadAsked reads the one JSON object that somebody asks by, called what in
// errors. A key that is no field of into is refused: a misspelt one would mean
// something else than was meant. Records, which somebody has accepted already,
// are read by [ParseSpec], which skips such keys. Every refusal is an
// [*InvalidError].
func ReadAsked(what string, text []byte, into any) error {
	if !utf8.Valid(text) {
		return invalid("%s is not valid JSON: it holds bytes that are not UTF-8", what)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	strict := d.Decode(into)
	if strict == nil && len(bytes.TrimSpace(text[d.InputOffset():])) == 0 {
		return nil
	}
	// A decoder knows keys; Unmarshal has the better words for all else.
	if err := json.Unmarshal(text, into); err != nil {
		return invalid("%s is not valid JSON: %v", what, describe(err))
	}
	if name, ok := strings.CutPrefix(fmt.Sprint(strict), "json: unknown field "); ok {
		return invalid("%s has no key %s; %s", what, name, instead(strings.Trim(name, `"`), keysOf(reflect.TypeOf(into), "")))
	}
	return invalid("%s cannot be read: %v", what, strict)
}

// instead says which key may have been meant, else which there are.
func instead(name string, keys []string) string {
	if other := elsewhere[name]; slices.Contains(keys, other) {
		return "here it is " + other
	}
	if len(keys) == 0 {
		return "it takes none"
	}
	return "there are " + strings.Join(keys, ", ")
}

// keysOf lists the JSON keys of a struct in order, those of structs in it with
// a dot between.
func keysOf(t reflect.Type, above string) (keys []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() {
		return nil
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" || !f.IsExported() || name == "-" || f.Type == reflect.TypeFor[*Blob]() {
			continue // what only nodes write is nobody's to ask by
		}
		if below := keysOf(f.Type, above+name+"."); len(below) > 0 {
			keys = append(keys, below...)
			continue
		}
		keys = append(keys, above+name)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// describe tells in JSON's words, and not in Go's, what does not fit.
func describe(err error) error {
	var (
		typed  *json.UnmarshalTypeError
		moment *time.ParseError
	)
	switch {
	case errors.As(err, &typed):
		return fmt.Errorf("%s must be %s, not %s", cmp.Or(jsonPath(typed.Field), "it"), wanted(typed.Type), typed.Value)
	case errors.As(err, &moment):
		return fmt.Errorf("%q is no moment like \"2026-11-21T09:30:00Z\"", strings.Trim(moment.Value, `"`))
	}
	return err
}

// jsonPath is a field's path without the embedded structs on the way, which
// JSON does not know: our keys have no capital letters.
func jsonPath(field string) string {
	parts := slices.DeleteFunc(strings.Split(field, "."), func(part string) bool { return part != strings.ToLower(part) })
	return strings.Join(parts, ".")
}

// wanted names a field's type in JSON's words.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint8, reflect.Uint32, reflect.Uint64:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a base64 string"
		}
		return "an array"
	}
	return "an object"
}
