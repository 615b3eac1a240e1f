package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger/history"
	"github.com/yardmaster-dev/yardmaster/web/console/calls"
	"github.com/yardmaster-dev/yardmaster/web/console/format"
	"github.com/yardmaster-dev/yardmaster/web/console/session"
	"github.com/yardmaster-dev/yardmaster/web/console/tail"
)

// hostile is a text that a page must show and not obey: HTML, attributes, an address that runs
// a script, and characters that are not visible or change the order of others.
const hostile = "\"'><script>alert(1)</script><img src=x onerror=alert(1)> javascript:alert(1) {{.}} \u202egpj.exe\u2066\x00\x07\x1b[31m\u200b\u0085 </textarea></title></style>"

// hostileYard replies to every endpoint with values whose texts are hostile. Texts that people
// write, such as messages, reasons and params, are large.
type hostileYard struct {
	large string
	huge  string // instead, of messages of errors
	on    bool   // value of everything that is true or false
	items int    // in every list
}

func (y *hostileYard) call(_ context.Context, call *calls.Call) ([]byte, error) {
	if call.Actor != "" {
		return nil, &api.Error{Code: api.CodeInvalid, Text: y.large}
	}
	for _, e := range api.Endpoints {
		if e.Name == call.Endpoint {
			reply := reflect.New(reflect.TypeOf(e.Reply))
			y.fill(reply.Elem(), "", 0)
			return json.Marshal(reply.Interface())
		}
	}
	return nil, fmt.Errorf("no endpoint %s", call.Endpoint)
}

// isLarge matches names of fields with texts whose size the yard bounds loosely or not at all.
var isLarge = regexp.MustCompile(`(?i)text|message|reason|verdict|error|problem|note|detail|from|to|help|advice|value`)

// fill sets a value of a field with a name, and what it contains.
func (y *hostileYard) fill(v reflect.Value, field string, depth int) {
	switch value := v.Addr().Interface().(type) {
	case *time.Time:
		*value = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		return
	case *job.ID:
		*value = job.ID{7}
		return
	case *json.RawMessage:
		*value = y.object(field)
		return
	}
	if _, ok := v.Interface().(json.Marshaler); ok || depth > 12 {
		return // has the form that it allows
	}
	switch v.Kind() {
	case reflect.String:
		if field == "Message" && y.huge != "" {
			v.SetString(y.huge)
		} else if isLarge.MatchString(field) {
			v.SetString(y.large)
		} else {
			v.SetString(hostile)
		}
	case reflect.Bool:
		v.SetBool(y.on)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float64:
		v.SetFloat(.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		y.fill(v.Elem(), field, depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				y.fill(v.Field(i), f.Name, depth+1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), y.items, y.items))
		for i := range y.items {
			y.fill(v.Index(i), field, depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		y.fill(key, "key", depth+1)
		y.fill(value, "value", depth+1)
		v.SetMapIndex(key, value)
	}
}

// object returns JSON for a field: of an event, of a line of a log, of a state of the yard, or
// of something that users wrote.
func (y *hostileYard) object(field string) json.RawMessage {
	var value any = map[string]any{hostile: []any{y.large, nil, map[string]any{hostile: y.large}}}
	switch field {
	case "Events":
		return y.event(7)
	case "Lines":
		line := &job.LogLine{}
		y.fill(reflect.ValueOf(line).Elem(), "", 0)
		value = line
	case "State":
		object := map[string]any{hostile: map[string]any{"paused": y.on, "open": y.on, "settings": value, "queue": hostile, "function": hostile, "node": hostile, "worker": hostile}}
		value = map[string]any{"queues": object, "limits": object, "crons": object, "running": object, "authority": map[string]any{"owner": hostile, "leased_until": hostile}}
	}
	text, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	return text
}

// event returns a line of the history.
func (y *hostileYard) event(number uint64) []byte {
	line := &history.Line{}
	y.fill(reflect.ValueOf(line).Elem(), "", 0)
	line.Event, line.Number, line.JobID, line.Text = "operator.acted", number, "", nil
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	return text
}

// startHostile serves a console of a hostile yard, whose only user may do everything.
func startHostile(t *testing.T, yard *hostileYard) *httptest.Server {
	s, _ := startConsole(t, func(cfg *Config) {
		cfg.Call, cfg.Users, cfg.Anonymous = yard.call, nil, &session.User{Name: hostile, Role: "operator", May: func(string) bool { return true }}
		events := bytes.Join([][]byte{yard.event(1), yard.event(2)}, []byte("\n"))
		cfg.Events = tail.Source{
			Since: func(context.Context, time.Time) ([]byte, uint64, error) { return events, 2, nil },
			From:  func(_ context.Context, from uint64) ([]byte, uint64, error) { return nil, from, nil },
			End:   func(context.Context) (uint64, error) { return 2, nil },
		}
	})
	return s
}

// maxHostilePage is the size of a page of a few rows, in bytes: it has at most the beginning of
// large texts.
const maxHostilePage = 1 << 20

// Every page is correct and small whatever the yard and the address of the page contain.
func TestHostile(t *testing.T) {
	query := url.Values{}
	for _, name := range []string{"q", "queue", "function", "error", "node", "state", "after", "range", "job", "at", "from", "to", "ago", "action", "query", "params"} {
		query.Set(name, hostile)
	}
	for _, yard := range []*hostileYard{{large: strings.Repeat(hostile, 200), on: true, items: 3}, {large: hostile, items: 1}, {large: hostile, huge: strings.Repeat("x", 10<<20), on: true, items: 1}} {
		s := startHostile(t, yard)
		for _, p := range allPages() {
			path := Path + strings.NewReplacer("{$}", "", "{rest...}", "a/b", "{name}", url.PathEscape(strings.ReplaceAll(hostile, "\x00", ""))).Replace(p.path)
			paths := []string{path, path + "?function=*", path + "?" + query.Encode()}
			if yard.huge != "" {
				paths = paths[:1]
				if !slices.Contains([]string{"job", "jobs", "letters", "preview"}, p.name) {
					continue // the page shows no errors of jobs
				}
			}
			for _, path := range paths {
				r, text := request(t, s, "GET", path, nil)
				if r.StatusCode >= 500 {
					t.Errorf("%s with %d bytes: %s", p.name, len(yard.large)+len(yard.huge), r.Status)
				}
				if fault := faultOf(text); fault != "" {
					t.Errorf("%s with %d bytes: %s", p.name, len(yard.large)+len(yard.huge), fault)
				}
				if len(text) > maxHostilePage {
					t.Errorf("%s with %d bytes has %d", p.name, len(yard.large)+len(yard.huge), len(text))
				}
			}
		}
	}
}

// Pages that show again what a user had entered are as correct, and so are their messages.
func TestHostile_Acts(t *testing.T) {
	s := startHostile(t, &hostileYard{large: strings.Repeat(hostile, 200), on: true, items: 1})
	_, page := request(t, s, "GET", Path+"queues", nil)
	for _, c := range []struct{ act, back string }{
		{"queue-set", "queues/mail"}, {"retry-set", "queues/mail"}, {"schema-set", "queues/mail/schema"}, {"limit-set", "limits/x"}, {"queue-add", "queues"}, {"job-replay", "jobs/x"},
		{"operation-start", "operations/new?query=x"}, {"worker-drain", "workers"}, {"dlq-requeue", "dead-letters"},
	} {
		form := url.Values{"form": {formOf(t, page)}, "back": {Path + c.back}, "part": {"new"}, "letter": {"7"}, "id": {hostile}}
		for _, name := range []string{"name", "function", "timeout_ms", "weights", "backoff_ms", "schema", "total", "rate", "params", "query", "reason", "worker"} {
			form[name], form["was-"+name] = []string{hostile}, []string{""}
		}
		r, text := request(t, s, "POST", Path+"act/"+c.act, form)
		if r.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: %s", c.act, r.Status)
		}
		if fault := faultOf(text); fault != "" || len(text) > maxHostilePage {
			t.Errorf("%s: %d bytes, %s", c.act, len(text), fault)
		}
	}
}

var (
	tagOf       = regexp.MustCompile(`^<(/?)([a-zA-Z0-9]+)((?:\s+[a-zA-Z0-9-]+(?:=(?:"[^"<>]*"|'[^'<>]*'))?)*)\s*(/?)>`)
	attributeOf = regexp.MustCompile(`([a-zA-Z0-9-]+)=["']([^"'<>]*)["']`)
)

// faultOf returns what is wrong with a page, "" if nothing is: a tag that the templates do not
// have, an attribute or an address that runs a script, an element that is not closed, or a
// character that is not visible in a text that people read.
func faultOf(page string) string {
	var open []string
	for rest := strings.TrimPrefix(page, "<!doctype html>"); rest != ""; {
		text, _, _ := strings.Cut(rest, "<")
		rest = rest[len(text):]
		if element := last(open); element != "textarea" && !readable(text) {
			return fmt.Sprintf("a text in %s is %.200q", element, text)
		}
		if rest == "" {
			break
		}
		tag := tagOf.FindStringSubmatch(rest)
		if tag == nil {
			return fmt.Sprintf("malformed: %.200q", rest)
		}
		rest = rest[len(tag[0]):]
		name := strings.ToLower(tag[2])
		switch {
		case tag[1] != "" && last(open) != name:
			return fmt.Sprintf("%s is closed by </%s>", last(open), name)
		case tag[1] != "":
			open = open[:len(open)-1]
			continue
		case name == "script" && tag[0] != `<script type="module" src="/console/assets/console.js">`:
			return "a script: " + tag[0]
		case name == "img" && !strings.Contains(tag[0], `src="/console/assets/`):
			return "an image: " + tag[0]
		case tag[4] == "" && !slices.Contains([]string{"meta", "link", "input", "br", "img", "hr", "wbr"}, name):
			open = append(open, name)
		}
		for _, a := range attributeOf.FindAllStringSubmatch(tag[3], -1) {
			key, value := strings.ToLower(a[1]), html.UnescapeString(a[2])
			switch {
			case strings.HasPrefix(key, "on"), key == "style", key == "srcdoc":
				return "an attribute that runs: " + tag[0]
			case slices.Contains([]string{"href", "action", "formaction", "src"}, key) && !strings.HasPrefix(value, "/console/") && !strings.HasPrefix(value, "#"):
				return fmt.Sprintf("%s leads to %.200q", key, value)
			case slices.Contains([]string{"title", "aria-label", "placeholder", "alt"}, key) && !readable(value):
				return fmt.Sprintf("%s is %.200q", key, value)
			case len(value) > 128<<10:
				return fmt.Sprintf("%s has %d bytes", key, len(value))
			}
		}
	}
	if len(open) > 0 {
		return fmt.Sprintf("not closed: %q", open)
	}
	return ""
}

func last(open []string) string {
	if len(open) == 0 {
		return ""
	}
	return open[len(open)-1]
}

// readable reports whether a text of a page has only characters that are visible, line breaks
// and the spaces between digits.
func readable(text string) bool {
	text = strings.NewReplacer("\n", "", "\t", "", "\u202f", "").Replace(html.UnescapeString(text))
	return format.Plain(text, math.MaxInt) == text
}
