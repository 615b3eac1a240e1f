package node

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// mismatch is how the decoder says that a value's type is not its key's: the
// line, the key, and the two types as Go names them.
var mismatch = regexp.MustCompile(`^toml: (?:line (\d+) )?\(last key (".*")\): ` +
	`(?:incompatible types: TOML value has type (\S+); destination has type (.+)|type mismatch for \S+: expected (table) but found (\S+))$`)

// outOfRange is what the decoder says of a number, with the Go type behind it.
var outOfRange = regexp.MustCompile(`( is out of range) for \w+$`)

// written names the types of TOML as the decoder's users know them.
var written = map[string]string{
	"string": "text", "int64": "a whole number", "float64": "a number with a fraction", "bool": "a boolean",
	"time.Time": "a date or time", "[]any": "a list", "map[string]any": "a table", "[]map[string]any": "a list of tables",
}

// expected says what a key of a type takes.
var expected = map[string]string{
	"string": `text in quotes, such as "a"`, "primitive (string-like)": `text in quotes, such as "a"`,
	"integer": "a whole number, such as 5", "float": "a number without a unit, such as 300 or 0.5",
	"boolean": "true or false", "slice": `a list, such as ["a", "b"]`, "map": "a table", "table": "a table",
}

// decodeError tells in TOML's words why a file cannot be read. keys are those
// that were read until then.
func decodeError(err error, meta *toml.MetaData) error {
	var parse toml.ParseError
	if errors.As(err, &parse) {
		said := strings.TrimPrefix(parse.Error(), "toml: ")
		return errors.New(outOfRange.ReplaceAllString(said, "$1"))
	}
	m := mismatch.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	name, unquoteErr := strconv.Unquote(m[2])
	key := keyNamed(name, meta)
	if unquoteErr != nil || key == nil {
		return err
	}
	line, is, must := m[1], m[3]+m[6], m[4]+m[5]
	if line != "" {
		line = "line " + line + ": "
	}
	what, right := name+" is ", expected[must]
	switch {
	case is != "[]any" && meta.Type(key...) == "Array":
		what = name + " is a list with " // one of its values is wrong
		right = "a list whose values are each " + right
	case typeOf(reflect.TypeFor[Config](), key) == reflect.TypeFor[time.Duration]():
		right = `text with a unit, such as "30s"`
	}
	if written[is] == "" || right == "" {
		return err
	}
	return fmt.Errorf("%s%s%s; must be %s", line, what, written[is], right)
}

// keyNamed finds a key as the decoder writes it; nil if it is none of those read.
func keyNamed(name string, meta *toml.MetaData) toml.Key {
	for _, k := range meta.Keys() {
		if k.String() == name {
			return k
		}
	}
	return nil
}

// notTables says of the keys that name tables which of them hold something
// else: the decoder leaves those out without a word.
func notTables(meta *toml.MetaData) error {
	for _, k := range meta.Keys() {
		t := typeOf(reflect.TypeFor[Config](), k)
		if t != nil && t.Kind() == reflect.Map && meta.Type(k...) != "Hash" {
			return fmt.Errorf("%s is no table; must be one, as in docs/configuration.md", k)
		}
	}
	return nil
}

// typeOf is the type of what stands under a key of t; nil for a key that is
// none.
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
