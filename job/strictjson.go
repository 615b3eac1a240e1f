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

	"github.com/yardmaster-dev/yardmaster/internal/similar"
)

// keyAliases maps the keys of other job systems to ours, so that a producer
// moved from such a system is told the right key instead of silently getting
// the default.
var keyAliases = map[string]string{
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

// UnmarshalStrict decodes data, one JSON object of a request, into v. subject
// names the object in errors. A key that is not a field of v is refused,
// because a misspelt key would otherwise be ignored silently. Records that are
// already accepted are read by [ParseSpec], which ignores unknown keys. The
// error is an [*InvalidError]; for an unknown key it is an [*UnknownKeyError], which wraps one.
func UnmarshalStrict(subject string, data []byte, v any) error {
	if !utf8.Valid(data) {
		return invalid("%s is not valid JSON: it holds bytes that are not UTF-8", subject)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	strictErr := decoder.Decode(v)
	if strictErr == nil && len(bytes.TrimSpace(data[decoder.InputOffset():])) == 0 {
		return nil
	}

	// The decoder finds unknown keys; for everything else Unmarshal has the
	// better error messages.
	if err := json.Unmarshal(data, v); err != nil {
		return invalid("%s is not valid JSON: %v", subject, describeJSONError(err))
	}
	if name, ok := strings.CutPrefix(fmt.Sprint(strictErr), "json: unknown field "); ok {
		return &UnknownKeyError{Subject: subject, Key: strings.Trim(name, `"`), Keys: jsonKeys(reflect.TypeOf(v), "")}
	}
	return invalid("%s cannot be read: %v", subject, strictErr)
}

// UnknownKeyError is returned for an object with a key that has no meaning there.
type UnknownKeyError struct {
	Subject string   // the object with the key, such as "request"
	Key     string   // the unknown key
	Keys    []string // the keys that the object may have, sorted
}

func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("%s has no key %q; %s", e.Subject, e.Key, suggestKey(e.Key, e.Keys))
}

// Unwrap returns an [*InvalidError] with the same text.
func (e *UnknownKeyError) Unwrap() error { return &InvalidError{Reason: e.Error()} }

// EncodeJSON returns the JSON of v. Unlike [json.Marshal] it does not escape the characters
// <, > and &, which would make values of callers up to six times as long.
func EncodeJSON(v any) ([]byte, error) {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // safe: no content type of ours is HTML
	if err := encoder.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// suggestKey returns which key was probably meant, or else which keys there
// are.
func suggestKey(name string, keys []string) string {
	if alias := keyAliases[name]; slices.Contains(keys, alias) {
		return "here it is " + alias
	}
	switch len(keys) {
	case 0:
		return "it takes none"
	case 1:
		return "there is only " + keys[0]
	}
	if meant := similar.Name(name, keys); meant != "" {
		return "the nearest is " + meant
	}
	return "there are " + strings.Join(keys, ", ")
}

// jsonKeys returns the JSON keys of a struct type, each after prefix, in
// alphabetical order. The keys of a nested struct follow its own key and a dot.
// It returns nil for other types.
func jsonKeys(t reflect.Type, prefix string) (keys []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == reflect.TypeFor[time.Time]() {
		return nil
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		isMerged := f.Anonymous && name == ""
		isForNodes := f.Type == reflect.TypeFor[*Blob]() || f.Type == reflect.TypeFor[IndexedValues]() // only nodes write them
		if isMerged || isForNodes || !f.IsExported() || name == "-" {
			continue
		}
		if nested := jsonKeys(f.Type, prefix+name+"."); len(nested) > 0 {
			keys = append(keys, nested...)
			continue
		}
		keys = append(keys, prefix+name)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// describeJSONError describes a value of the wrong type or a malformed time in
// JSON's terms instead of Go's. It returns any other error unchanged.
func describeJSONError(err error) error {
	if mismatch, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%s must be %s, not %s", cmp.Or(jsonPath(mismatch.Field), "it"), jsonTypeName(mismatch.Type), mismatch.Value)
	}
	if malformed, ok := errors.AsType[*time.ParseError](err); ok {
		return fmt.Errorf("%q is not a time like \"2026-11-21T09:30:00Z\"", strings.Trim(malformed.Value, `"`))
	}
	return err
}

// jsonPath returns a field's path without the names of embedded structs, which
// are not in the JSON. They are recognised by their capital letters, which no
// key of ours has.
func jsonPath(field string) string {
	parts := slices.DeleteFunc(strings.Split(field, "."), func(part string) bool { return part != strings.ToLower(part) })
	return strings.Join(parts, ".")
}

// jsonTypeName describes a field's type in JSON's terms.
func jsonTypeName(t reflect.Type) string {
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
