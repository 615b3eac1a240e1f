package overhop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
)

// fieldReader reads the fields of a payload by name and keeps the first error.
// In the protocol's draft a nil is not the same as a missing field; the messages
// of the extension treat it as one (nilIsAbsent).
type fieldReader struct {
	within      string // what precedes the names in errors, such as "error."
	names       []string
	values      [maxFields]Raw // by index of names; empty: missing
	nilIsAbsent bool           // the opt methods treat nil as a missing field
	err         error          // a *Violation
}

// maxFields is the largest number of fields of a message.
const maxFields = 28

// newFieldReader returns a reader of the named fields of p, which it finds in one
// pass. Only these can be read. The compiler inlines the functions that make a
// reader, so that it is on its caller's stack, and there once. The names are not: those of
// frequent messages are variables, so that they are not allocated for each.
func newFieldReader(p Raw, names ...string) *fieldReader {
	r := &fieldReader{names: names}
	r.find(p)
	return r
}

// newExtensionReader is newFieldReader for a message of the delivery extension.
func newExtensionReader(p Raw, names ...string) *fieldReader {
	r := &fieldReader{names: names, nilIsAbsent: true}
	r.find(p)
	return r
}

// nested returns a reader of the named fields of p, a field that r has read. Its
// first error is that of r, if r has one. within precedes the names in errors.
func (r *fieldReader) nested(p Raw, within string, names ...string) *fieldReader {
	nested := &fieldReader{names: names, within: within, nilIsAbsent: r.nilIsAbsent, err: r.err}
	nested.find(p)
	return nested
}

// find finds the fields in p.
func (r *fieldReader) find(p Raw) { p.pick(r.values[:], r.names...) }

// raw returns a field, empty if it is missing.
func (r *fieldReader) raw(name string) Raw { return r.values[slices.Index(r.names, name)] }

// optional returns a field, empty if it is missing or nil.
func (r *fieldReader) optional(name string) Raw {
	v := r.raw(name)
	if v.IsNil() {
		return nil
	}
	return v
}

// isAbsent reports whether an optional field is to have its default.
func (r *fieldReader) isAbsent(name string) bool {
	v := r.raw(name)
	return len(v) == 0 || r.nilIsAbsent && v.IsNil()
}

func (r *fieldReader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = &Violation{fmt.Sprintf(format, args...)}
	}
}

// mismatch records that a field is missing or has another type than expected,
// which names the type.
func (r *fieldReader) mismatch(name, expected string, actual Raw) {
	if len(actual) == 0 {
		r.fail("%s%s is missing, must be %s", r.within, name, expected)
		return
	}
	r.fail("%s%s must be %s, not %s", r.within, name, expected, actual.Kind())
}

// str returns a copy of a field that must be text.
func (r *fieldReader) str(name string) string { return string(r.text(name)) }

// text returns a field that must be text, in place. It is valid as long as the
// frame.
func (r *fieldReader) text(name string) []byte { return r.textOf(name, r.raw(name)) }

// textOf returns v, which must be text, in place. name is used in errors.
func (r *fieldReader) textOf(name string, v Raw) []byte {
	b, ok := v.Text()
	if !ok {
		r.mismatch(name, "a string", v)
	}
	return b
}

// bin returns binary in place. It is valid as long as the frame.
func (r *fieldReader) bin(name string) []byte {
	b, ok := r.raw(name).Bin()
	if !ok {
		r.mismatch(name, "binary", r.raw(name))
	}
	return b
}

// int returns an integer of at least low and at most high.
func (r *fieldReader) int(name string, low, high int64) int64 {
	i, ok := r.raw(name).Int()
	if !ok {
		r.mismatch(name, "an int", r.raw(name))
	} else if i < low || i > high {
		r.fail("%s%s is %d, must be %d to %d", r.within, name, i, low, high)
	}
	return i
}

// uuid parses a UUID in any usual form and returns the canonical one.
func (r *fieldReader) uuid(name string) string {
	id, err := uuid.ParseBytes(r.text(name))
	if err != nil {
		r.mismatch(name, "a UUID", r.raw(name))
	}
	return id.String()
}

// jsonOf returns the JSON that a client sends in place of another field, in place: as
// binary, under the name of that field with [JSONSuffix]. It returns nil if the client sends
// none.
func (r *fieldReader) jsonOf(name string) []byte {
	if r.isAbsent(name) {
		return nil
	}
	text := r.bin(name)
	if !json.Valid(text) || !utf8.Valid(text) || !JSONFits(text, payloadDepth) {
		r.fail("%s%s must be JSON in UTF-8, nested at most %d deep", r.within, name, payloadDepth)
	}
	return text
}

// userValue returns a copy of a field's value, or of the JSON in its place. It is empty if
// the field is missing, or nil.
func (r *fieldReader) userValue(name string) Raw {
	if text, ok := r.raw(name + JSONSuffix).Bin(); ok {
		value, _ := FromJSON(text)
		return value
	}
	return slices.Clone(r.optional(name))
}

// container returns an array or a map, as kind says. kindName is used in errors.
func (r *fieldReader) container(name string, kind Kind, kindName string) Raw {
	v := r.raw(name)
	if v.Kind() != kind {
		r.mismatch(name, kindName, v)
	}
	return v
}

func (r *fieldReader) optStr(name string) string {
	if r.isAbsent(name) {
		return ""
	}
	return r.str(name)
}

func (r *fieldReader) optInt(name string, low, high, fallback int64) int64 {
	if r.isAbsent(name) {
		return fallback
	}
	return r.int(name, low, high)
}

// optBool returns a bool, fallback if it is missing.
func (r *fieldReader) optBool(name string, fallback bool) bool {
	if r.isAbsent(name) {
		return fallback
	}
	b, ok := r.raw(name).Bool()
	if !ok {
		r.mismatch(name, "a bool", r.raw(name))
	}
	return b
}

// optTime returns a time that is given as RFC 3339 text, the zero time if it is
// missing.
func (r *fieldReader) optTime(name string) time.Time {
	if r.isAbsent(name) {
		return time.Time{}
	}
	t, err := parseTime(r.text(name))
	if err != nil {
		r.mismatch(name, "an RFC 3339 time", r.raw(name))
	}
	return t
}

// parseTime parses a time in any form that RFC 3339 allows, which are more than the time
// package parses: the letters may be lower case, a space may separate date and time, and a
// leap second is the end of its minute.
func parseTime(text []byte) (time.Time, error) {
	var plain time.Time
	if len(text) <= len(time.RFC3339Nano) && plain.UnmarshalText(text) == nil {
		return plain, nil
	}
	const date, clock = len("2006-01-02"), len("15:04:")
	strict := bytes.ToUpper(text)
	if len(strict) > date && strict[date] == ' ' {
		strict[date] = 'T'
	}
	leap := time.Duration(0)
	if second := date + 1 + clock; len(strict) > second+2 && string(strict[second:second+2]) == "60" {
		copy(strict[second:], "59")
		leap = time.Second
	}
	t, err := time.Parse(time.RFC3339Nano, string(strict))
	return t.Add(leap), err
}

// optKey returns nil for a missing text, so that it can be told from an empty
// one.
func (r *fieldReader) optKey(name string) *string {
	if r.raw(name).IsNil() {
		return nil
	}
	return new(r.str(name))
}

// optCount returns nil for a missing number, so that it can be told from 0.
func (r *fieldReader) optCount(name string, low, high int64) *int64 {
	if r.raw(name).IsNil() {
		return nil
	}
	return new(r.int(name, low, high))
}

// maxStringMap is the number of entries allowed in a map of strings. In memory
// each takes many times its size in the frame.
const maxStringMap = 64

// optStrings returns a copy of a map of texts, nil if it is missing. More than
// maxStringMap entries are an error.
func (r *fieldReader) optStrings(name string) map[string]string {
	if r.isAbsent(name) {
		return nil
	}
	v := r.container(name, KindMap, "a map of strings")
	if v.Len() > maxStringMap {
		r.fail("%s has %d entries, must have at most %d", name, v.Len(), maxStringMap)
		return nil
	}
	texts := make(map[string]string)
	for key, value := range v.Pairs() {
		texts[string(key)] = string(r.textOf(name+"."+string(key), value))
	}
	return texts
}

// optTexts returns an array of at most maxStringMap texts, nil if it is missing.
func (r *fieldReader) optTexts(name string) (texts []string) {
	if r.isAbsent(name) {
		return nil
	}
	for item := range r.container(name, KindArray, "an array of texts").Items() {
		if len(texts) == maxStringMap {
			r.fail("%s has more than %d texts", name, maxStringMap)
		}
		if r.err != nil {
			return nil
		}
		texts = append(texts, string(r.textOf(name, item)))
	}
	return texts
}

// milliseconds converts ms to a Duration, at most the largest one.
func milliseconds(ms int64) time.Duration {
	return time.Duration(min(ms, maxInt/int64(time.Millisecond))) * time.Millisecond
}

const (
	minInt   = math.MinInt64
	maxInt   = math.MaxInt64
	maxCount = 1<<32 - 1
)
