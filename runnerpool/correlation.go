package runnerpool

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of a correlation context, in bytes. RRQ has the same.
const (
	maxCorrelations     = 16
	maxCorrelationKey   = 64
	maxCorrelationValue = 256
)

// correlation is one entry of [Config.Correlation]: what of a job's params
// goes into its correlation context under a key.
type correlation struct {
	key  string
	path []string
}

func (c *Config) validateCorrelation() error {
	for _, key := range slices.Sorted(maps.Keys(c.Correlation)) {
		path := c.Correlation[key]
		switch {
		case strings.TrimSpace(key) == "" || len(key) > maxCorrelationKey:
			return wrong("correlation_mappings", key, fmt.Sprintf("use keys of 1 to %d bytes", maxCorrelationKey))
		case slices.Contains(pathOf(path), ""):
			return wrong("correlation_mappings."+key, path, `name a value of the params, as in "params.tenant.id" or "tenant.id"`)
		}
	}
	return nil
}

// pathOf splits a path of params, which may say so.
func pathOf(path string) []string {
	return strings.Split(strings.TrimPrefix(strings.TrimSpace(path), "params."), ".")
}

// correlations lists the entries in order of their keys.
func (c *Config) correlations() []correlation {
	var all []correlation
	for _, key := range slices.Sorted(maps.Keys(c.Correlation)) {
		all = append(all, correlation{strings.TrimSpace(key), pathOf(c.Correlation[key])})
	}
	return all
}

// correlate finds what a job is to be known by: what the producer's trace has
// under the key, else the scalar that lies at the path in the params. nil if
// there is nothing.
func correlate(all []correlation, params json.RawMessage, trace map[string]string) map[string]string {
	if len(all) == 0 {
		return nil
	}
	var top map[string]json.RawMessage
	if len(params) > 0 && json.Unmarshal(params, &top) != nil {
		return nil // whoever sends them says what is wrong
	}
	var found map[string]string
	for _, c := range all {
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

// scalarAt is the text of a string, number or boolean; "" if there is none at
// path. A number keeps the digits it was written with.
func scalarAt(fields map[string]json.RawMessage, path []string) string {
	for ; len(path) > 1; path = path[1:] {
		inner := fields[path[0]]
		if fields = nil; len(inner) == 0 || json.Unmarshal(inner, &fields) != nil {
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

// truncate cuts a text to n bytes at most, never within a character.
func truncate(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
