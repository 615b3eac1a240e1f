package console

import (
	"crypto/rand"
	"fmt"
	"html/template"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/draw"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
	"github.com/yardmaster-dev/yardmaster/web/console/pages"
)

// functions returns the functions of the templates.
func functions() template.FuncMap {
	return template.FuncMap{
		"name":    format.Name,
		"line":    format.Line,
		"verdict": format.Verdict,
		"reason":  format.Reason,
		"text":    func(text string) template.HTML { return format.Text(text, format.CutBlock, true) },
		"at":      func(at any) template.HTML { return format.Time(at, false) },
		"ago":     func(at any) template.HTML { return format.Time(at, true) },
		"inZone":  format.InZone,
		"count":   format.Count, "plural": format.Plural,
		"bytes":   func(n any) string { return format.Bytes(format.Int(n)) },
		"ms":      func(n any) string { return format.Duration(time.Duration(format.Int(n)) * time.Millisecond) },
		"dur":     format.Duration,
		"took":    func(from, to *time.Time) string { return format.Duration(to.Sub(*from)) },
		"details": format.Details,
		"tree":    format.Tree,
		"json":    format.Indented,
		"bar":     draw.Bar,
		"strip":   draw.Strip,
		"shape":   draw.Shape,
		"round":   func(ms *float64) int64 { return int64(math.Round(*ms)) },
		"lines":   draw.Lines,
		"spark":   draw.Spark,
		"sorts":   func() []string { return pages.Sorts },
		"add":     func(a, b int) int { return a + b },
		"button": func(f *frame, act, label string, fields ...any) *button {
			return newButton(f, act, label, fields)
		},
		"field": newField,
		"retry": func(f *frame, rule *api.RetryRule, queue string, add bool) *retry {
			return newRetry(f, rule, queue, add)
		},
		"kept":       kept,
		"optional":   optional,
		"optionalMS": optionalMS,
		"search":     pages.Search,
		"term":       pages.Term,
		"path":       func(kind, name string) string { return Path + kind + "/" + url.PathEscape(name) },
		"states":     func() []string { return pages.States },
		"deref":      format.Deref,
		"setting":    format.Setting,
		"error":      func(err error) string { return calls.Problem(err).Text },
		"list":       func(values []string) string { return strings.Join(values, ", ") },
		"endable":    func(state string) bool { return state != "waiting" && state != "delayed" && state != "active" },
		"lower":      strings.ToLower,
		"further":    further,
		"actions":    func() []string { return pages.Actions },
		"operation":  pages.OperationURL,
		"unique":     rand.Text,
		"share":      shareOf,
	}
}

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
	b := &button{Act: act, Form: f.Form, Back: f.URL, Label: strings.TrimSuffix(label, "…"), Danger: strings.HasSuffix(label, "…")}
	node := ""
	for i := 0; i+1 < len(fields); i += 2 {
		field := [2]string{fmt.Sprint(fields[i]), fmt.Sprint(fields[i+1])}
		if field[0] == "node" {
			node = field[1]
		}
		b.Fields = append(b.Fields, field)
	}
	b.May = f.User != nil && f.User.MayUse(act, node)
	return b
}

// further returns the reasons whose texts a verdict does not have.
func further(verdict string, reasons []api.Reason) (others []api.Reason) {
	verdict = strings.ToLower(verdict)
	for _, r := range reasons {
		if !strings.Contains(verdict, strings.ToLower(strings.TrimSuffix(r.Text, "."))) {
			others = append(others, r)
		}
	}
	return others
}

// shareOf returns how much of an operation is done, 0 to 1.
func shareOf(matched, expected uint64, state string) float64 {
	switch {
	case state == "done":
		return 1
	case expected == 0:
		return 0
	}
	return float64(matched) / float64(expected)
}
