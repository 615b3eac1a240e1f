package job

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
)

// KeyAt returns the limit key at a valid path, see [ValidKeyPath], in the params of a job. The
// params are a JSON object or empty. A string is the key itself, a boolean the key in its JSON
// form, and a number the key in its shortest decimal form. If the value is missing or null, found is false. The error, an
// [*InvalidError], names the path.
func KeyAt(params []byte, path string) (key string, found bool, err error) {
	value := valueAt(params, strings.Split(strings.TrimPrefix(path, "params."), "."))
	switch {
	case value == nil || value[0] == 'n':
		return "", false, nil
	case value[0] == '{' || value[0] == '[':
		return "", false, invalid("the limit key at %s must be a string, a number or a boolean", path)
	}
	key = scalar(value)
	if err := ValidLimitKey(key); err != nil {
		return "", false, invalid("at %s: %v", path, err)
	}
	return key, true, nil
}

// valueAt returns the value of a field of nested JSON objects without the space around it, nil if it is
// missing.
func valueAt(object []byte, names []string) []byte {
	for _, name := range names {
		if object = field(object, name); object == nil {
			return nil
		}
	}
	return object
}

// scalar returns the text of a string, a number or a boolean of valid JSON.
func scalar(value []byte) (text string) {
	switch value[0] {
	case '"':
		_ = json.Unmarshal(value, &text) // it is valid
	case 't', 'f':
		text = string(value)
	default:
		text = numberKey(string(value))
	}
	return text
}

// numberKey returns the key of a number: a whole number without a fraction or an exponent, so
// that 1, 1.0 and 1e0 are one key.
func numberKey(text string) string {
	if !strings.ContainsAny(text, ".eE") {
		return text
	}
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return text
	case n == math.Trunc(n) && math.Abs(n) < 1<<53:
		return strconv.FormatInt(int64(n), 10)
	}
	return strconv.FormatFloat(n, 'g', -1, 64)
}

// field returns the value of a field of a JSON object without the space around it, nil if object
// is no object or does not have the field.
func field(object []byte, name string) []byte { return fields(object)[name] }

// fields returns the fields of a JSON object, none if object is no object.
func fields(object []byte) (all map[string]json.RawMessage) {
	if !isJSONObject(object) || json.Unmarshal(object, &all) != nil {
		return nil
	}
	return all
}
