package acts

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
)

// FieldError is why a field of the form was refused.
type FieldError struct {
	Field string
	Err   error
}

func (e *FieldError) Error() string { return e.Err.Error() }
func (e *FieldError) Unwrap() error { return e.Err }

// invalid returns the error of an act that the form does not describe.
func invalid(format string, args ...any) error {
	return &api.Error{Code: api.CodeInvalid, Text: fmt.Sprintf(format, args...)}
}

// field is a field of a form that holds a setting. Dots in its name lead into objects of the
// request.
type field struct {
	name  string
	parse func(text string) (any, error) // of a text that is not empty; "" resets the setting
}

// changes returns those settings of the form that differ from what the page had shown.
func (a *Act) changes(fields []field) (map[string]any, error) {
	change := map[string]any{}
	for _, f := range fields {
		if !a.edited(f.name) {
			continue
		}
		var value any
		if text := a.value(f.name); text != "" {
			var err error
			if value, err = f.parse(text); err != nil {
				return nil, &FieldError{f.name, invalid("%q %v", text, err)}
			}
		}
		object := change
		path := strings.Split(f.name, ".")
		for _, name := range path[:len(path)-1] {
			if object[name] == nil {
				object[name] = map[string]any{}
			}
			object = object[name].(map[string]any)
		}
		object[path[len(path)-1]] = value
	}
	return change, nil
}

// atField returns err as an error of the edited field that its text names, or of the only
// edited one. Other errors than of an invalid request are of no field.
func (a *Act) atField(err error) error {
	if err == nil || calls.Problem(err).Code != api.CodeInvalid {
		return err
	}
	text := calls.Problem(err).Text
	found, at, edited := "", len(text), []string(nil)
	for key := range a.Form {
		name, isField := strings.CutPrefix(key, "was-")
		if !isField || !a.edited(name) {
			continue
		}
		edited = append(edited, name)
		shown := strings.TrimSuffix(strings.TrimSuffix(strings.TrimPrefix(name, "retention."), "_ms"), "s")
		if i := strings.Index(text, shown); i >= 0 && i < at {
			found, at = name, i
		}
	}
	if found == "" && len(edited) == 1 {
		found = edited[0]
	}
	if found == "" {
		return err
	}
	return &FieldError{found, err}
}

// whole parses a whole number.
func whole(text string) (any, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, errors.New("must be a whole number, or empty")
	}
	return n, nil
}

// milliseconds parses a duration, such as 30s.
func milliseconds(text string) (any, error) {
	d, err := duration.Parse(text)
	if err != nil || d < time.Millisecond {
		return nil, errors.New("must be a duration, such as 30s, or empty")
	}
	return d.Milliseconds(), nil
}

// plain returns the text itself.
func plain(text string) (any, error) { return text, nil }

// checked returns true: an empty text means that a box is not checked, and true is the
// default of no such setting.
func checked(string) (any, error) { return true, nil }

// list parses names that are joined by commas or lines.
func list(text string) (any, error) {
	names := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '\n' })
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" }), nil
}

// object parses JSON.
func object(text string) (json.RawMessage, error) {
	if !json.Valid([]byte(text)) {
		return nil, invalid("this is not valid JSON")
	}
	return json.RawMessage(text), nil
}
