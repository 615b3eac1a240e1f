package cli

import (
	"encoding"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/api"
)

// hostile is a text that a terminal interprets, or that breaks a table: escape sequences
// with C0 and C1 controls, line breaks of all kinds, controls of direction, and 5,000
// columns.
var hostile = "\x1b[2J\x1b]0;owned\a\x1b]8;;http://x\x1b\\<script>\r\n\tJOB\v\f\x00\x7f\u0085\u009b31m\u2028\u2029\u202e\u2066\u200f\ufeff\U000e0041" +
	strings.Repeat("wide 表 ", 800)

// hostileVerbs are verbs that show a reply, with the names of their endpoints.
var hostileVerbs = []struct{ args, endpoint string }{
	{"job show x", "job-show"},
	{"job wait x", "job-wait"},
	{"job explain x", "job-explain"},
	{"job list -q q --state failed", "job-list"},
	{"job cancel x", "job-cancel"},
	{"job retry x", "job-retry"},
	{"job replay x", "job-replay"},
	{"job rm x", "job-remove"},
	{"queue list", "queue-list"},
	{"queue show q", "queue-show"},
	{"queue explain q", "queue-explain"},
	{"queue pause q", "queue-pause"},
	{"retention show", "retention-show"},
	{"queue rm q", "queue-remove"},
	{"cron list", "cron-list"},
	{"cron show c", "cron-show"},
	{"cron rm c", "cron-remove"},
	{"cron pause c", "cron-pause"},
	{"dlq list", "dlq-list"},
	{"dlq show 1", "dlq-show"},
	{"dlq stats", "dlq-stats"},
	{"dlq requeue --all --limit 1", "dlq-requeue"},
	{"dlq rm --all --limit 1", "dlq-remove"},
	{"workers", "worker-list"},
	{"cluster members", "cluster-members"},
	{"cluster transfer", "cluster-transfer"},
	{"status", "status"},
	{"snapshot", "snapshot"},
	{"health", "status"},
}

// outerLines returns the number of lines without the indented ones below the heading of an error.
func outerLines(out string) (n int) {
	inError := false
	for line := range strings.Lines(out) {
		inError = line == "error\n" || line == "error of the last attempt\n" || inError && strings.HasPrefix(line, "  ")
		if !inError {
			n++
		}
	}
	return n
}

// Nothing that a producer or a worker writes reaches the terminal as it is: neither in a
// reply nor in an error. With harmless texts of the same reply, the output has as many
// lines, apart from those of errors, which are indented.
func TestHostileTexts(t *testing.T) {
	for _, verb := range hostileVerbs {
		t.Run(verb.args, func(t *testing.T) {
			reply := func(text string) string { return replyWith(t, verb.endpoint, text) }
			text := ""
			subject := endpointNamed(t, verb.endpoint).Subject
			f := startFakeAPI(t, cannedReplies{subject: func([]byte) ([]byte, error) {
				if text == "refuse" {
					return nil, &api.Error{Code: api.CodeConflict, Text: hostile}
				}
				return []byte(reply(text)), nil
			}})
			run := func(given string, flags ...string) cmdResult {
				text = given
				return f.run(t, append(strings.Fields(verb.args), flags...)...)
			}

			harmless, shown, refused := run("text"), run(hostile), run("refuse")
			if lines := outerLines(shown.out); lines != outerLines(harmless.out) || lines == 0 && shown.err == "" {
				t.Errorf("%d lines of output, with harmless texts %d:\n%.2000s", lines, outerLines(harmless.out), shown.out)
			}
			if strings.Count(refused.err, "\n") != 1 || refused.code == 0 {
				t.Errorf("refusal, exit code %d: %.1000q", refused.code, refused.err)
			}
			for _, out := range []string{shown.out, shown.err, refused.err} {
				checkSafe(t, out)
			}
			if slices.Contains([]string{"health", "snapshot", "job rm x"}, verb.args) {
				return
			}
			if exact := run(hostile, "--json"); !strings.Contains(exact.out, `wide 表 `) || !strings.Contains(exact.out, "\u202e") {
				t.Errorf("--json is not exact: %.500q", exact.out)
			}
		})
	}
}

// checkSafe reports what a terminal would interpret, and lines that are too long.
func checkSafe(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		unsafe := func(r rune) bool {
			return unicode.IsControl(r) || unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp) || r == utf8.RuneError
		}
		if i := strings.IndexFunc(line, unsafe); i >= 0 {
			t.Errorf("unsafe character at %d of %.300q", i, line)
		}
		if n := utf8.RuneCountInString(line); n > 3*4200 && !strings.HasSuffix(t.Name(), "/snapshot") { // a sentence has up to three texts
			t.Errorf("line of %d characters: %.300q", n, line)
		}
	}
}

func endpointNamed(t *testing.T, name string) api.Endpoint {
	t.Helper()
	i := slices.IndexFunc(api.Endpoints, func(e api.Endpoint) bool { return e.Name == name })
	if i < 0 {
		t.Fatalf("no endpoint %s", name)
	}
	return api.Endpoints[i]
}

// replyWith returns a reply of an endpoint with text in every field that can hold it.
func replyWith(t *testing.T, endpoint, text string) string {
	t.Helper()
	kind := reflect.TypeOf(endpointNamed(t, endpoint).Reply)
	if strings.HasPrefix(endpoint, "dlq-re") {
		kind = reflect.TypeFor[api.DeadLetterResults]()
	}
	value := reflect.New(kind)
	fill(value.Elem(), text, 0)
	if page, ok := value.Interface().(*api.DeadLetterPage); ok {
		page.Continuation = api.Continuation{} // the last page
	}
	if stats, ok := value.Interface().(*api.DeadLetterStats); ok {
		stats.Continuation = api.Continuation{}
	}
	if results, ok := value.Interface().(*api.DeadLetterResults); ok {
		results.Stopped, results.Continuation = "", api.Continuation{}
	}
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value.Interface()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// fill sets every field below v: texts to text, numbers to 7.
func fill(v reflect.Value, text string, depth int) {
	if depth > 8 || !v.CanSet() {
		return
	}
	switch v.Addr().Interface().(type) {
	case *json.RawMessage:
		raw, _ := json.Marshal(map[string]string{"text": text})
		v.SetBytes([]byte(strings.ReplaceAll(string(raw), `\u2028`, "\u2028")))
		return
	case *time.Time:
		v.Set(reflect.ValueOf(time.Unix(1700000000, 0).UTC()))
		return
	case encoding.TextUnmarshaler:
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		v.SetBool(false)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), text, depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), text, depth+1)
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(text))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), text, depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, text, depth+1)
		fill(value, text, depth+1)
		v.SetMapIndex(key, value)
	}
}

// Verbs write what people read by command.Printf, Row or Fields only, which sanitize it.
func TestVerbsPrintThroughCommand(t *testing.T) {
	var files []string
	for _, dir := range []string{"contract", "dlq", "inspect", "jobs", "operate", "run"} {
		found, err := filepath.Glob(filepath.Join(dir, "*.go"))
		files, _ = append(files, found...), errors.Join(err)
	}
	if len(files) < 20 {
		t.Fatalf("only %d files", len(files))
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, source, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := call.X.(*ast.Ident); ok && pkg.Name == "fmt" && (strings.HasPrefix(call.Sel.Name, "Fprint") || strings.HasPrefix(call.Sel.Name, "Print")) {
				t.Errorf("%s: fmt.%s; use command.Printf, Row or Fields", set.Position(call.Pos()), call.Sel.Name)
			}
			return true
		})
	}
}
