package acts

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

// settings are the settings of an object as its endpoint shows them. Numbers are [json.Number].
type settings map[string]any

// present returns the present settings of the object that the form names.
func (a *Act) present(ctx context.Context, endpoint string) (s settings, err error) {
	shown, err := calls.Ask[json.RawMessage](ctx, a.Call, a.User, endpoint, map[string]string{"name": a.value("name")})
	if err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(shown))
	d.UseNumber()
	err = d.Decode(&s)
	return s, err
}

// text returns a setting as the fields of the pages have it, "" if it is not set.
func (s settings) text(name string) string {
	if kind, isRetention := strings.CutPrefix(name, "retention."); isRetention {
		kept := s.item("retention", "name", strings.TrimSuffix(kind, "_ms"))
		s = settings{name: kept["value"]}
	}
	switch value := s[name].(type) {
	case bool:
		if value {
			return "on"
		}
	case string:
		return value
	case json.Number:
		if !strings.HasSuffix(name, "_ms") {
			return value.String()
		}
		if ms, err := value.Int64(); err == nil && ms > 0 {
			return duration.Format(time.Duration(ms) * time.Millisecond)
		}
	case []any:
		var items []string
		for _, item := range value {
			items = append(items, fmt.Sprint(item))
		}
		return strings.Join(items, ", ")
	}
	return ""
}

// item returns the object of a list whose key has a value, nil if there is none.
func (s settings) item(list, key, value string) settings {
	items, _ := s[list].([]any)
	for _, item := range items {
		if object, _ := item.(map[string]any); object[key] == value {
			return object
		}
	}
	return nil
}

// checkCurrent returns an error if the present value of an edited field is neither the one that
// the page had shown nor the one that was entered: saving would undo what someone else has
// changed. The page then shows the present values, and saving again replaces them.
func (a *Act) checkCurrent(present settings, fields []field) error {
	var stale []string
	first := ""
	for _, f := range fields {
		is := present.text(f.name)
		if !a.edited(f.name) || is == strings.TrimSpace(a.Form.Get("was-"+f.name)) || is == a.value(f.name) {
			continue
		}
		if first == "" {
			first = f.name
		}
		stale = append(stale, staleText(strings.ReplaceAll(strings.TrimSuffix(f.name, "_ms"), "_", " "), is))
	}
	return staleError(first, stale)
}

// checkWeights is checkCurrent for the weights of keys that a change sets. shown are those that
// the page had.
func (a *Act) checkWeights(present settings, shown, change map[string]any) error {
	var stale []string
	weights, _ := present["weights"].(map[string]any)
	for key, value := range change {
		is := textOf(weights[key])
		if is != textOf(shown[key]) && is != textOf(value) {
			stale = append(stale, staleText("the weight of "+format.Plain(key, format.CutName), is))
		}
	}
	slices.Sort(stale)
	return staleError("weights", stale)
}

// textOf returns a weight as a text, "" for nil.
func textOf(weight any) string {
	if weight == nil {
		return ""
	}
	return fmt.Sprint(weight)
}

// staleText returns what someone has changed a setting to.
func staleText(name, is string) string {
	if is == "" {
		return name + " was reset"
	}
	return name + " was changed to " + format.Plain(is, format.CutName)
}

// staleError returns the error for settings that were changed, nil if there are none.
func staleError(field string, stale []string) error {
	if len(stale) == 0 {
		return nil
	}
	return &FieldError{field, &api.Error{Code: api.CodeConflict, Text: "since this page was shown, " + strings.Join(stale, ", ") + "; save again to replace that"}}
}
