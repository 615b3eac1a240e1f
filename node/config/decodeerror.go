package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// typeMismatch matches the decoder's error about a value of the wrong type: the line,
// the key, and both types by their Go names.
var typeMismatch = regexp.MustCompile(`^toml: (?:line (\d+) )?\(last key (".*")\): ` +
	`(?:incompatible types: TOML value has type (\S+); destination has type (.+)|type mismatch for \S+: expected (table) but found (\S+))$`)

// outOfRange matches the end of the decoder's error about a number, which names a Go
// type.
var outOfRange = regexp.MustCompile(`( is out of range) for \w+$`)

// tomlTypes maps the decoder's type names to words for users.
var tomlTypes = map[string]string{
	"string": "text", "int64": "a whole number", "float64": "a number with a fraction", "bool": "a boolean",
	"time.Time": "a date or time", "[]any": "a list", "map[string]any": "a table", "[]map[string]any": "a list of tables",
}

// expectedValues describes the values that a type accepts, by the decoder's name of it.
var expectedValues = map[string]string{
	"string": `text in quotes, such as "a"`, "primitive (string-like)": `text in quotes, such as "a"`,
	"integer": "a whole number, such as 5", "float": "a number without a unit, such as 300 or 0.5",
	"boolean": "true or false", "slice": `a list, such as ["a", "b"]`, "map": "a table", "table": "a table",
}

// expectedDuration describes the values that a key with a duration accepts.
const expectedDuration = `text with a unit, such as "30s" or "1d"`

// decodeFile decodes the TOML file at path into c. A duration may be in days, which the
// decoder does not know.
func decodeFile(path string, c *Config) (toml.MetaData, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return toml.MetaData{}, err
	}
	return decode(string(text), c)
}

// decode is like [decodeFile] for the content of a file.
func decode(text string, c *Config) (toml.MetaData, error) {
	var tables map[string]any
	if meta, err := toml.Decode(text, &tables); err != nil {
		return meta, decodeError(err, &meta)
	}
	hasDays, err := convertDurations(tables, nil)
	if err != nil {
		return toml.MetaData{}, err
	}
	if hasDays {
		converted, err := toml.Marshal(tables)
		if err != nil {
			return toml.MetaData{}, err
		}
		text = string(converted)
	}
	meta, err := toml.Decode(text, c)
	if err != nil {
		err = decodeError(err, &meta)
		if hasDays { // the line is that of the converted text
			err = errors.New(lineNumber.ReplaceAllString(err.Error(), ""))
		}
	}
	return meta, err
}

// lineNumber matches where a message says in which line the problem is.
var lineNumber = regexp.MustCompile(`^line \d+: |^line \d+ `)

// convertDurations replaces the durations in value, the value of key in a decoded file,
// that have days by the same durations in hours, which the decoder of the Config
// understands, and reports whether it has replaced any. It returns an error for what is
// not a duration where the Config has one; other types are left to the decoder.
func convertDurations(value any, key toml.Key) (hasDays bool, err error) {
	table, isTable := value.(map[string]any)
	if !isTable {
		return false, nil
	}
	for name, value := range table {
		key := append(slices.Clip(key), name)
		if typeOf(reflect.TypeFor[Config](), key) != reflect.TypeFor[time.Duration]() {
			converted, err := convertDurations(value, key)
			if err != nil {
				return false, err
			}
			hasDays = hasDays || converted
			continue
		}
		switch value := value.(type) {
		case int64: // the decoder would take it as nanoseconds
			return false, fmt.Errorf("%s is a whole number; must be %s", key, expectedDuration)
		case string:
			d, err := duration.Parse(value)
			if err != nil {
				return false, fmt.Errorf("%s: %w", key, err)
			}
			if strings.Contains(value, "d") {
				table[name], hasDays = d.String(), true
			}
		}
	}
	return hasDays, nil
}

// decodeError returns err, an error of the TOML decoder about a value of the wrong type,
// with TOML's names of types in place of Go's. It returns any other error as it is. meta
// has the keys that were read before the error.
func decodeError(err error, meta *toml.MetaData) error {
	var parse toml.ParseError
	if errors.As(err, &parse) {
		text := strings.TrimPrefix(parse.Error(), "toml: ")
		return errors.New(outOfRange.ReplaceAllString(text, "$1"))
	}
	m := typeMismatch.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	name, unquoteErr := strconv.Unquote(m[2])
	keys := meta.Keys()
	i := slices.IndexFunc(keys, func(k toml.Key) bool { return k.String() == name })
	if unquoteErr != nil || i < 0 {
		return err
	}
	line, foundType, expectedType := m[1], m[3]+m[6], m[4]+m[5]
	if line != "" {
		line = "line " + line + ": "
	}
	problem, remedy := name+" is ", expectedValues[expectedType]
	switch key := keys[i]; {
	case foundType != "[]any" && meta.Type(key...) == "Array": // foundType is that of a value in the list
		problem = name + " is a list with "
		remedy = "a list whose values are each " + remedy
	case typeOf(reflect.TypeFor[Config](), key) == reflect.TypeFor[time.Duration]():
		remedy = expectedDuration
	}
	if tomlTypes[foundType] == "" || remedy == "" {
		return err
	}
	return fmt.Errorf("%s%s%s; must be %s", line, problem, tomlTypes[foundType], remedy)
}

// checkTables returns an error for a key that must be a table and is something else:
// the decoder ignores those silently.
func checkTables(meta *toml.MetaData) error {
	for _, k := range meta.Keys() {
		t := typeOf(reflect.TypeFor[Config](), k)
		if t != nil && t.Kind() == reflect.Map && meta.Type(k...) != "Hash" {
			return fmt.Errorf("%s is not a table; it must be one, as in docs/reference/config.md", k)
		}
	}
	return nil
}

// typeOf returns the type of the field of t that key names, or nil without such a field.
func typeOf(t reflect.Type, key toml.Key) reflect.Type {
	switch {
	case len(key) == 0:
		return t
	case t.Kind() == reflect.Map:
		return typeOf(t.Elem(), key[1:])
	case t.Kind() == reflect.Slice:
		return typeOf(t.Elem(), key)
	case t.Kind() != reflect.Struct:
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			if found := typeOf(f.Type, key); found != nil {
				return found
			}
		} else if f.Tag.Get("toml") == key[0] {
			return typeOf(f.Type, key[1:])
		}
	}
	return nil
}
