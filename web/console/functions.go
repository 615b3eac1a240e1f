package console

import (
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/web/console/draw"
)

// functions returns the functions of the templates.
func functions() template.FuncMap {
	return template.FuncMap{
		"name":  func(text string) template.HTML { return shown(text, cutName, false) },
		"line":  func(text string) template.HTML { return shown(text, cutLine, false) },
		"text":  func(text string) template.HTML { return shown(text, cutBlock, true) },
		"at":    func(at any) template.HTML { return timeElement(at, false) },
		"ago":   func(at any) template.HTML { return timeElement(at, true) },
		"count": countOf,
		"bytes": func(n any) string { return byteText(toInt(n)) },
		"ms":    func(n any) string { return shortDuration(time.Duration(toInt(n)) * time.Millisecond) },
		"dur":   shortDuration,
		"took":  func(from, to *time.Time) string { return shortDuration(to.Sub(*from)) },
		"tree":  func(text json.RawMessage) template.HTML { return tree(text) },
		"json":  indented,
		"bar":   draw.Bar,
		"lines": draw.Lines,
		"button": func(f *frame, act, label string, fields ...any) *button {
			return newButton(f, act, label, fields)
		},
		"search":  func(terms string) string { return Path + "jobs?" + url.Values{"q": {terms}}.Encode() },
		"term":    queryTerm,
		"path":    func(kind, name string) string { return Path + kind + "/" + url.PathEscape(name) },
		"states":  func() []string { return stateNames },
		"deref":   deref,
		"setting": settingText,
		"error":   func(err error) string { return problemOf(err).Text },
		"list":    func(values []string) string { return strings.Join(values, ", ") },
		"endable": func(state string) bool { return state != "waiting" && state != "delayed" && state != "active" },
		"lower":   strings.ToLower,
		"further": further,
	}
}

// stateNames are the states of jobs, in the order in which pages show them.
var stateNames = func() (names []string) {
	for s := job.Waiting; int(s) < job.States; s++ {
		names = append(names, s.String())
	}
	return names
}()

// button is a form with one button.
type button struct {
	May    bool
	Act    string
	Label  string
	Fields [][2]string
	Form   string
	Back   string
	Danger bool // it asks first
}

// newButton returns a button for an act, with fields in pairs of a name and a value. A label
// that ends in an ellipsis makes it ask first.
func newButton(f *frame, act, label string, fields []any) *button {
	b := &button{Act: act, Form: f.Form, Back: f.url, Label: strings.TrimSuffix(label, "…"), Danger: strings.HasSuffix(label, "…")}
	node := ""
	for i := 0; i+1 < len(fields); i += 2 {
		field := [2]string{fmt.Sprint(fields[i]), fmt.Sprint(fields[i+1])}
		if field[0] == "node" {
			node = field[1]
		}
		b.Fields = append(b.Fields, field)
	}
	b.May = f.user != nil && mayUse(f.user, act, node)
	return b
}

// further returns those of the reasons whose texts a verdict does not have.
func further(verdict string, reasons []api.Reason) (others []api.Reason) {
	verdict = strings.ToLower(verdict)
	for _, r := range reasons {
		if !strings.Contains(verdict, strings.ToLower(strings.TrimSuffix(r.Text, "."))) {
			others = append(others, r)
		}
	}
	return others
}

// deref returns the value of a pointer, or "" for nil.
func deref(v any) any {
	switch p := v.(type) {
	case *int64:
		if p != nil {
			return *p
		}
	case *uint32:
		if p != nil {
			return *p
		}
	case *uint8:
		if p != nil {
			return *p
		}
	case *int:
		if p != nil {
			return *p
		}
	}
	return ""
}

// toInt returns a number of any type of whole numbers.
func toInt(n any) int64 {
	switch n := n.(type) {
	case int:
		return int64(n)
	case int64:
		return n
	case uint64:
		return int64(min(n, 1<<62))
	case uint32:
		return int64(n)
	case uint8:
		return int64(n)
	case *int64:
		if n != nil {
			return *n
		}
	}
	return 0
}

// countOf returns a number of any type of whole numbers as a text.
func countOf(n any) string { return countText(toInt(n)) }

// timeElement returns a time as HTML: in UTC, which scripts replace by the viewer's zone, or
// by how long ago it is. It returns a dash for no time.
func timeElement(at any, ago bool) template.HTML {
	var t time.Time
	switch v := at.(type) {
	case time.Time:
		t = v
	case *time.Time:
		if v != nil {
			t = *v
		}
	}
	if t.IsZero() {
		return `<span class="none">–</span>`
	}
	t = t.UTC()
	kind := ""
	if ago {
		kind = ` data-ago`
	}
	return template.HTML(fmt.Sprintf(`<time datetime="%s" title="%s UTC"%s>%s UTC</time>`, //nolint:gosec // digits only
		t.Format(time.RFC3339Nano), t.Format("2006-01-02 15:04:05.000"), kind, t.Format("2006-01-02 15:04:05")))
}

// shortDuration returns a duration with the digits that people need.
func shortDuration(d time.Duration) string {
	switch {
	case d >= time.Hour:
		d = d.Round(time.Minute)
	case d >= time.Minute:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(10 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	return duration.Format(d)
}

// settingText returns the value of a retention setting for people.
func settingText(s api.RetentionSetting) string {
	switch {
	case s.Value == 0 && s.Unit == "bytes":
		return "as the stream was created"
	case s.Value == 0:
		return "no bound"
	case s.Unit == "ms":
		return shortDuration(time.Duration(s.Value) * time.Millisecond)
	case s.Unit == "bytes":
		return byteText(s.Value)
	}
	return countText(s.Value)
}
