package edge

import (
	"fmt"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"yardmaster/edge/overhop"
	"yardmaster/job"
)

// page is docs/overhop.md.
func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/overhop.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// protocolConstants are the message types, by number, and the codes that package
// overhop declares.
func protocolConstants(t *testing.T) (messages map[string]string, codes map[string]bool) {
	t.Helper()
	messages, codes = map[string]string{}, map[string]bool{}
	files, err := filepath.Glob("overhop/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			group, ok := d.(*ast.GenDecl)
			if !ok || group.Tok != gotoken.CONST {
				continue
			}
			for _, spec := range group.Specs {
				value := spec.(*ast.ValueSpec)
				if len(value.Values) != 1 {
					continue
				}
				literal, ok := value.Values[0].(*ast.BasicLit)
				if !ok {
					continue
				}
				name := value.Names[0].Name
				if text, err := strconv.Unquote(literal.Value); err == nil && strings.HasPrefix(name, "Code") {
					codes[text] = true
				} else if messageName.MatchString(name) && literal.Kind == gotoken.INT {
					messages[literal.Value] = strings.ToUpper(name[1:])
				}
			}
		}
	}
	if len(messages) < 40 || len(codes) < 30 {
		t.Fatalf("found %d messages and %d codes: is this the protocol?", len(messages), len(codes))
	}
	return messages, codes
}

var (
	messageName = regexp.MustCompile(`^T[A-Z]`)
	messageRow  = regexp.MustCompile(`(?m)^\| (\d+) \| ([A-Z]+)(?: ⊕)? \| (client|node) \|`)
	requestRow  = regexp.MustCompile(`(?m)^\| (\d+) \| ([A-Z]+)(?: ⊕)? \|`)
	messageHead = regexp.MustCompile(`(?m)^#### (\d+) ([A-Z]+)`)
	codeRow     = regexp.MustCompile("(?m)^\\| `([A-Z_]+)`(?: ⊕)? \\| (?:closes|stays) \\|")
	codeWord    = regexp.MustCompile("`([A-Z]+_[A-Z_]+|UNAVAILABLE|UNAUTHORIZED|DRAINING)`")
	limitRow    = regexp.MustCompile("(?m)^\\| `([a-z_.]+)` \\| `([^`]+)` \\| (.*) \\|$")
)

// The page names every message and every code, each as it is, and no other.
func TestPageNamesMessagesAndCodes(t *testing.T) {
	text := page(t)
	messages, codes := protocolConstants(t)
	listed := map[string]bool{}
	for _, row := range messageRow.FindAllStringSubmatch(text, -1) {
		if number, _ := strconv.Atoi(row[1]); (number > 100) != (row[3] == "node") {
			t.Errorf("t=%s is not from %s", row[1], row[3])
		}
		listed[row[1]] = true
	}
	for number, name := range messages {
		if !listed[number] {
			t.Errorf("t=%s, %s, is missing in the table of messages", number, name)
		}
	}
	for _, rows := range [][][]string{requestRow.FindAllStringSubmatch(text, -1), messageHead.FindAllStringSubmatch(text, -1)} {
		for _, row := range rows {
			if messages[row[1]] != row[2] {
				t.Errorf("t=%s is called %s, it is %q", row[1], row[2], messages[row[1]])
			}
		}
	}
	listed = map[string]bool{}
	for _, row := range codeRow.FindAllStringSubmatch(text, -1) {
		listed[row[1]] = true
	}
	for code := range codes {
		if !listed[code] {
			t.Errorf("%s is missing in the table of codes", code)
		}
	}
	for code := range listed {
		if !codes[code] {
			t.Errorf("%s stands in the table of codes and is none", code)
		}
	}
	for _, word := range codeWord.FindAllStringSubmatch(text, -1) {
		if !listed[word[1]] && !slices.Contains(reasons, word[1]) {
			t.Errorf("the page speaks of %s, which is no code", word[1])
		}
	}
}

// reasons are words that look like codes and are why something was pushed.
var reasons = []string{"QUEUE_REMOVED", "LEASE_EXPIRED"}

// The page's limits are those of the configuration: every key is there, with
// the default it has, and a range whose ends are taken and no value beyond.
func TestPageNamesLimits(t *testing.T) {
	listed := map[string]bool{}
	for _, row := range limitRow.FindAllStringSubmatch(page(t), -1) {
		key, def := row[1], row[2]
		listed[key] = true
		c := Config{}.WithDefaults()
		f, ok := keyed(reflect.ValueOf(&c).Elem(), key)
		if !ok {
			t.Errorf("%s is no key", key)
			continue
		}
		if got := shown(f); got != def {
			t.Errorf("%s is %s by default, the page says %s", key, got, def)
		}
		low, high, ranged := strings.Cut(row[3], " to ")
		if !ranged || strings.Contains(row[3], "`") {
			continue
		}
		for _, c := range []struct {
			value string
			step  int64
			taken bool
		}{{low, 0, true}, {high, 0, true}, {low, -1, false}, {high, 1, false}} {
			if low == "0s" && c.value == low { // 0 is how a file says "the default"
				continue
			}
			if err := withKey(t, key, c.value, c.step).Validate(); (err == nil) != c.taken {
				t.Errorf("%s = %s%+d: %v", key, c.value, c.step, err)
			}
		}
	}
	for _, table := range []string{"wire", "wire.session", "pagination", "delivery", "limits"} {
		v, _ := keyed(reflect.ValueOf(&Config{}).Elem(), table)
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if key := table + "." + f.Tag.Get("toml"); f.Type.Kind() != reflect.Struct && !listed[key] {
				t.Errorf("%s is missing in the table of limits", key)
			}
		}
	}
}

// withKey is the default configuration with one key set, and those that bound
// it out of its way.
func withKey(t *testing.T, key, value string, step int64) Config {
	t.Helper()
	c := Config{}.WithDefaults()
	if key == "pagination.max_page_size" { // the page itself must fit
		reflect.ValueOf(&c.Pagination).Elem().Field(0).SetInt(1)
	}
	if key == "delivery.lease" {
		c.Delivery.Beat = 100 * time.Millisecond
		c.Delivery.SettleWait = 100 * time.Millisecond
	}
	f, _ := keyed(reflect.ValueOf(&c).Elem(), key)
	n, err := strconv.ParseInt(value, 10, 64)
	if d, parsed := time.ParseDuration(value); err != nil {
		n, err = int64(d), parsed
	}
	if err != nil {
		t.Fatal(err)
	}
	f.SetInt(n + step)
	return c
}

// keyed finds a field by its dotted key.
func keyed(v reflect.Value, key string) (reflect.Value, bool) {
	for name := range strings.SplitSeq(key, ".") {
		found := false
		for i := range v.NumField() {
			if v.Type().Field(i).Tag.Get("toml") == name {
				v, found = v.Field(i), true
				break
			}
		}
		if !found {
			return v, false
		}
	}
	return v, true
}

// shown is a value as the page writes it.
func shown(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return fmt.Sprint(v.Interface())
}

// Every key that the protocol's messages read or write is on the page.
func TestPageNamesKeys(t *testing.T) {
	text := page(t)
	keys := map[string]bool{}
	for _, name := range []string{"overhop/messages.go", "overhop/extension.go"} {
		file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || f.Sel.Name != "pick" && f.Sel.Name != "Get" {
				return true
			}
			for _, argument := range call.Args {
				if literal, ok := argument.(*ast.BasicLit); ok {
					key, _ := strconv.Unquote(literal.Value)
					keys[key] = true
				}
			}
			return true
		})
	}
	if len(keys) < 40 {
		t.Fatalf("found %d keys: is this the protocol?", len(keys))
	}
	view := job.View{Function: "f", PayloadGone: true, Fault: &job.Fault{Message: "m", Type: "t", Code: "c"}}
	for key, value := range new(Server).record(&view) {
		keys[key] = true
		if inner, ok := value.(overhop.Fields); ok {
			for key := range inner {
				keys[key] = true
			}
		}
	}
	for key := range keys {
		if !strings.Contains(text, "`"+key+"`") && !strings.Contains(text, "`"+key+":") && !strings.Contains(text, "`{"+key+"`") {
			t.Errorf("the page does not name %q", key)
		}
	}
}
