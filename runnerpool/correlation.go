package runnerpool

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of a correlation context, in bytes and entries, as in RRQ.
const (
	maxCorrelations     = 16
	maxCorrelationKey   = 64
	maxCorrelationValue = 256
)

// correlation is one entry of [Config.Correlation]: the key in the context, and
// the path of its value in the params.
type correlation struct {
	key  string
	path []string
}

// validateCorrelation checks the length of the keys, and that no path has an
// empty name.
func (c *Config) validateCorrelation() error {
	for _, key := range slices.Sorted(maps.Keys(c.Correlation)) {
		path := c.Correlation[key]
		switch {
		case strings.TrimSpace(key) == "" || len(key) > maxCorrelationKey:
			return keyError("correlation_mappings", key, fmt.Sprintf("use keys of 1 to %d bytes", maxCorrelationKey))
		case slices.Contains(pathOf(path), ""):
			return keyError("correlation_mappings."+key, path, `name a value of the params, as in "params.tenant.id" or "tenant.id"`)
		}
	}
	return nil
}

// pathOf splits a path into names. A leading "params." is optional.
func pathOf(path string) []string {
	return strings.Split(strings.TrimPrefix(strings.TrimSpace(path), "params."), ".")
}

// correlations returns the entries of [Config.Correlation], sorted by key.
func (c *Config) correlations() []correlation {
	var all []correlation
	for _, key := range slices.Sorted(maps.Keys(c.Correlation)) {
		all = append(all, correlation{strings.TrimSpace(key), pathOf(c.Correlation[key])})
	}
	return all
}

// correlate returns the correlation context of a job: for each entry the value
// of its key in the producer's trace, else the scalar at its path in the
// params. Entries without a value are left out, and values are truncated to
// maxCorrelationValue. The result is nil if no entry has a value.
func correlate(entries []correlation, params json.RawMessage, trace map[string]string) map[string]string {
	if len(entries) == 0 {
		return nil
	}
	var top map[string]json.RawMessage
	if len(params) > 0 && json.Unmarshal(params, &top) != nil {
		return nil // reported when the request is sent
	}
	var found map[string]string
	for _, c := range entries {
		value := trace[c.key]
		if value == "" {
			value = scalarAt(top, c.path)
		}
		if value == "" || len(found) == maxCorrelations {
			continue
		}
		if found == nil {
			found = make(map[string]string)
		}
		found[c.key] = truncate(value, maxCorrelationValue)
	}
	return found
}

// scalarAt returns the string, number or boolean at path, which leads through
// nested objects, as text. It returns "" if there is none. A number keeps its
// digits.
func scalarAt(fields map[string]json.RawMessage, path []string) string {
	for ; len(path) > 1; path = path[1:] {
		inner := fields[path[0]]
		fields = nil // or Unmarshal would add to it
		if len(inner) == 0 || json.Unmarshal(inner, &fields) != nil {
			return ""
		}
	}
	value := fields[path[0]]
	var text string
	switch {
	case len(value) == 0 || value[0] == '{' || value[0] == '[' || string(value) == "null":
		return ""
	case value[0] != '"':
		return string(value)
	case json.Unmarshal(value, &text) != nil:
		return ""
	}
	return text
}

// truncate returns at most n bytes of a text, without a partial character at
// the end.
func truncate(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
