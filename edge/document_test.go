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

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// docText returns the text of docs/reference/overhop.md.
func docText(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/reference/overhop.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// protocolConstants returns the message types, by number, and the error codes
// that package overhop declares.
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
		t.Fatalf("found %d messages and %d codes, want more", len(messages), len(codes))
	}
	return messages, codes
}

var (
	messageName = regexp.MustCompile(`^T[A-Z]`)
	messageRow  = regexp.MustCompile(`(?m)^\| (client|node)( ⊕)? \| (.*) \|$`)
	messageCell = regexp.MustCompile(`(\d+) ([A-Z]+)(?:, |$)`)
	requestRow  = regexp.MustCompile(`(?m)^\| (\d+) \| ([A-Z]+)(?: ⊕)? \|`)
	messageHead = regexp.MustCompile(`(?m)^#### (\d+) ([A-Z]+)`)
	codeEntry   = regexp.MustCompile("(?m)^- `([A-Z_]+)`(?: ⊕)?: ")
	codeWord    = regexp.MustCompile("`([A-Z]+_[A-Z_]+|UNAVAILABLE|UNAUTHORIZED|DRAINING)`")
	tableHead   = regexp.MustCompile("^## `\\[([a-z.]+)\\]`$")
	keyRow      = regexp.MustCompile("^\\| `([a-z_]+)` \\| `\"?([^`\"]+)\"?`[^|]* \\| ([^|]*) \\|")
	keyRange    = regexp.MustCompile("^`?([0-9]+[a-z]*)`? to `?([0-9]+[a-z]*)`?(?:;|$)")
)

// The page lists every message and every code correctly, and no others.
func TestDoc_ListsMessagesAndCodes(t *testing.T) {
	text := docText(t)
	messages, codes := protocolConstants(t)
	listed := map[string]bool{}
	for _, row := range messageRow.FindAllStringSubmatch(text, -1) {
		for _, cell := range messageCell.FindAllStringSubmatch(row[3], -1) {
			number, _ := strconv.Atoi(cell[1])
			if (number > 100) != (row[1] == "node") {
				t.Errorf("t=%s is not from a %s", cell[1], row[1])
			}
			if (number%100 >= 40) != (row[2] != "") {
				t.Errorf("t=%s is in the row %s%s of the messages", cell[1], row[1], row[2])
			}
			if messages[cell[1]] != cell[2] {
				t.Errorf("t=%s is called %s, it is %q", cell[1], cell[2], messages[cell[1]])
			}
			listed[cell[1]] = true
		}
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
	_, entries, _ := strings.Cut(text, "\n## Codes\n")
	entries, _, _ = strings.Cut(entries, "\n## ")
	for _, row := range codeEntry.FindAllStringSubmatch(entries, -1) {
		listed[row[1]] = true
	}
	for code := range codes {
		if !listed[code] {
			t.Errorf("%s is missing in the list of codes", code)
		}
	}
	for code := range listed {
		if !codes[code] {
			t.Errorf("the list of codes lists %s, which is not a code", code)
		}
	}
	for _, word := range codeWord.FindAllStringSubmatch(text, -1) {
		if !listed[word[1]] && !slices.Contains(reasons, word[1]) {
			t.Errorf("the page mentions %s, which is not a code", word[1])
		}
	}
}

// reasons are words of pushes that look like codes.
var reasons = []string{"QUEUE_REMOVED", "LEASE_EXPIRED"}

// limitTables are the tables of the configuration that Config holds.
var limitTables = []string{"wire", "wire.session", "pagination", "delivery", "limits"}

// TestDoc_ListsLimits compares docs/reference/config.md with Config: the page lists
// every key of its tables with its default and its range. The ends of each range are
// accepted, the values beyond them refused.
func TestDoc_ListsLimits(t *testing.T) {
	page, err := os.ReadFile("../docs/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	listed, ranges, table := map[string]bool{}, 0, ""
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "## ") {
			table = ""
			if head := tableHead.FindStringSubmatch(line); head != nil && slices.Contains(limitTables, head[1]) {
				table = head[1]
			}
		}
		row := keyRow.FindStringSubmatch(line)
		if table == "" || row == nil {
			continue
		}
		key, def := table+"."+row[1], row[2]
		listed[key] = true
		c := Config{}.WithDefaults()
		f, ok := keyed(reflect.ValueOf(&c).Elem(), key)
		if !ok {
			t.Errorf("%s is not a configuration key", key)
			continue
		}
		if got := shown(f); got != def {
			t.Errorf("%s is %s by default, the page says %s", key, got, def)
		}
		if ends := keyRange.FindStringSubmatch(row[3]); ends != nil {
			ranges++
			checkRange(t, key, ends[1], ends[2])
		}
	}
	if ranges < 12 {
		t.Errorf("found %d ranges, want more", ranges)
	}
	for _, table := range limitTables {
		v, _ := keyed(reflect.ValueOf(&Config{}).Elem(), table)
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if key := table + "." + f.Tag.Get("toml"); f.Type.Kind() != reflect.Struct && !listed[key] {
				t.Errorf("%s is missing in its table", key)
			}
		}
	}
}

// checkRange checks that key takes the values from low to high, and none beyond.
func checkRange(t *testing.T, key, low, high string) {
	t.Helper()
	for _, c := range []struct {
		value string
		step  int64
		taken bool
	}{{low, 0, true}, {high, 0, true}, {low, -1, false}, {high, 1, false}} {
		if low == "0s" && c.value == low { // 0 in a file means the default
			continue
		}
		if err := withKey(t, key, c.value, c.step).Validate(); (err == nil) != c.taken {
			t.Errorf("%s = %s%+d: %v", key, c.value, c.step, err)
		}
	}
}

// withKey returns the default configuration with one key set to value plus
// step, and related keys set so that they do not restrict it.
func withKey(t *testing.T, key, value string, step int64) Config {
	t.Helper()
	c := Config{}.WithDefaults()
	if key == "delivery.lease" {
		c.Delivery.Beat = 100 * time.Millisecond
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

// keyed returns the field with the given dotted key.
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

// shown returns a value in the form used on the page.
func shown(v reflect.Value) string {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	return fmt.Sprint(v.Interface())
}

// Every key that the protocol's messages contain is on the page.
func TestDoc_ListsMessageKeys(t *testing.T) {
	text := docText(t)
	keys := map[string]bool{}
	for _, name := range []string{"overhop/messages.go", "overhop/extension.go"} {
		file, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		add := func(names []ast.Expr) {
			for _, name := range names {
				if literal, ok := name.(*ast.BasicLit); ok {
					key, _ := strconv.Unquote(literal.Value)
					keys[key] = true
				}
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok && (f.Name == "newFieldReader" || f.Name == "newExtensionReader") {
					add(n.Args)
				}
			case *ast.ValueSpec: // the names that such a call takes from a variable
				for i, value := range n.Values {
					if list, ok := value.(*ast.CompositeLit); ok && strings.HasSuffix(n.Names[i].Name, "Fields") {
						add(list.Elts)
					}
				}
			}
			return true
		})
	}
	if len(keys) < 40 {
		t.Fatalf("found %d keys, want more", len(keys))
	}
	view := job.View{Function: "f", Key: "k", PayloadGone: true, Fault: &job.Fault{Message: "m", Type: "t", Code: "c"}}
	for key, value := range (queries{server: &Server{deliveries: new(deliveries)}}).jobFields(&view) {
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
