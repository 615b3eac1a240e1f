package console

import (
	"context"
	"fmt"
	"hash/fnv"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
)

// failure is an act that failed. The page that its form was on is shown again, with what the
// user had entered and the reason, at the field if one was refused.
type failure struct {
	act   string
	form  url.Values
	err   *api.Error
	field string // "" means none
}

// failureKey is the key of a [*failure] in the context of a request for a page.
type failureKey struct{}

// serveFailure shows the page of a form again, whose act has failed.
func (c *Console) serveFailure(w http.ResponseWriter, r *http.Request, back string, f *failure) {
	page := r.Clone(context.WithValue(r.Context(), failureKey{}, f))
	address, err := url.Parse(back)
	if err != nil {
		address = &url.URL{Path: Path}
	}
	page.Method, page.URL, page.RequestURI = http.MethodGet, address, back
	c.mux.ServeHTTP(w, page)
}

// field is a field of a form that changes a setting. The form also has the value that the
// page shows, so that only what the user has edited is changed.
type field struct {
	Kind, Name, Label, Hint string
	Was, Value              string
	Error, ID               string // why Value was refused; the id of the element with that
}

// newField returns a field of the form of an act. Kind is text, number, lines or check, was the
// value that the yard has. A page with several forms of an act numbers them by part.
func newField(f *frame, act, part, kind, name, label string, was any, hint string) *field {
	new := &field{Kind: kind, Name: name, Label: label, Hint: hint, Was: fmt.Sprint(was)}
	switch is, _ := was.(bool); {
	case is:
		new.Was = "on"
	case kind == "check":
		new.Was = ""
	}
	new.Value = new.Was
	if x := f.failure; x != nil && x.act == act && x.form.Get("part") == part {
		if entered := x.form.Get(name); strings.TrimSpace(entered) != strings.TrimSpace(x.form.Get("was-"+name)) {
			new.Value = entered // of other fields, the present value: others may have changed it
		}
		if x.field == name {
			sum := fnv.New32()
			fmt.Fprint(sum, act, part, name)
			new.Error, new.ID = x.err.Text, fmt.Sprintf("error-%08x", sum.Sum32())
		}
	}
	return new
}

// Dirty reports whether the form of an act shows what a user had entered.
func (f *frame) Dirty(act, part string) bool {
	return f.failure != nil && f.failure.act == act && f.failure.form.Get("part") == part
}

// Entered returns what a user had entered into a field of the form of an act, or else a value.
func (f *frame) Entered(act, name, value string) string {
	if f.Dirty(act, "") {
		return f.failure.form.Get(name)
	}
	return value
}

// retry is the form of a retry rule of a queue.
type retry struct {
	Title           template.HTML
	Form, URL       string
	Queue, Function string
	Part            string
	Fields          []*field
	New, Open, May  bool
}

// newRetry returns the form of a rule, or of one that is to be added.
func newRetry(f *frame, rule *api.RetryRule, queue string, add bool) *retry {
	const act = "retry-set"
	r := &retry{Form: f.Form, URL: f.URL, Queue: queue, New: add, May: f.May("queue-set"), Title: "Add a rule", Part: "new"}
	if add {
		rule = &api.RetryRule{}
	} else {
		r.Part, r.Function, r.Title = "rule "+rule.Function, rule.Function, "All functions without a rule of their own"
		if rule.Function != "" {
			r.Title = format.Text(rule.Function, format.CutName, false)
		}
	}
	if r.Open = f.Dirty(act, r.Part); r.Open {
		r.Function = f.failure.form.Get("function")
	}
	addField := func(kind, name, label string, was any, hint string) {
		r.Fields = append(r.Fields, newField(f, act, r.Part, kind, name, label, was, hint))
	}
	if add || rule.Function != "" { // all functions have the attempts of the queue
		addField("number", "max_attempts", "Attempts", optional(int64(rule.MaxAttempts)), "the queue's")
	}
	addField("text", "backoff_ms", "First delay", optionalMS(rule.BackoffMS), "the yard's, or 10s")
	addField("text", "max_backoff_ms", "Longest delay", optionalMS(rule.MaxBackoffMS), "the yard's, or 1h")
	addField("number", "jitter", "Jitter, percent", format.Deref(rule.Jitter), "the yard's")
	addField("text", "retry_on", "Retry only on", strings.Join(rule.RetryOn, ", "), "types or codes of errors")
	addField("text", "discard_on", "Discard on", strings.Join(rule.DiscardOn, ", "), "types or codes of errors")
	return r
}

// optional returns a number as a text, "" for 0.
func optional(n any) string {
	if format.Int(n) == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

// optionalMS returns a number of milliseconds as a duration, "" for 0.
func optionalMS(ms int64) string {
	if ms == 0 {
		return ""
	}
	return duration.Format(time.Duration(ms) * time.Millisecond)
}

// kept returns the retention setting of a name for a field, "" if the settings lack it.
func kept(settings []api.RetentionSetting, name string) string {
	i := slices.IndexFunc(settings, func(s api.RetentionSetting) bool { return s.Name == name })
	switch {
	case i < 0:
		return ""
	case settings[i].Unit == "ms":
		return optionalMS(settings[i].Value)
	}
	return fmt.Sprint(settings[i].Value)
}
