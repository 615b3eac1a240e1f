package dialogue

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"yardmaster/edge/overhop"
)

// Row is one thing the protocol's tables say, which some conversation must
// show: a message, a fact about its payload, and what comes of it.
type Row struct {
	Message string // of a request, or "push"
	When    string // "-", "state fresh", "q missing", "q not", "n <0", "n >9", "n =9", "q int"
	Answer  string // OK, HI, PONG, "ERR CODE", or a push's name
	Why     string // it cannot be shown; empty: it must be

	line int
}

func (r Row) String() string {
	return fmt.Sprintf("line %d: %s, %s: %s", r.line, r.Message, r.When, r.Answer)
}

// LoadRows reads a table of four columns parted by tabs: message, when, answer,
// and why it cannot be shown. In when, "a|b" stands for two rows, and "not str"
// for one of every other kind, of which "not str,nil" leaves nil out as well.
func LoadRows(file string) ([]Row, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var rows []Row
	for i, line := range strings.Split(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		f := append(strings.Split(line, "\t"), "")
		if len(f) < 4 {
			return nil, fmt.Errorf("%s:%d: three or four columns are wanted", file, i+1)
		}
		if numbers[f[0]] == 0 && f[0] != "push" && f[0] != "other" {
			return nil, fmt.Errorf("%s:%d: %q is no message", file, i+1, f[0])
		}
		path, conditions, _ := strings.Cut(f[1], " ")
		for _, condition := range strings.Split(conditions, "|") {
			for _, one := range expand(condition) {
				rows = append(rows, Row{f[0], strings.TrimSpace(path + " " + one), f[2], f[3], i + 1})
			}
		}
	}
	return rows, nil
}

func expand(condition string) (all []string) {
	excepted, ok := strings.CutPrefix(condition, "not ")
	if !ok {
		return []string{condition}
	}
	for _, kind := range kinds {
		if !slices.Contains(strings.Split(excepted, ","), kind) {
			all = append(all, kind)
		}
	}
	return all
}

var kinds = []string{"nil", "bool", "int", "str", "bin", "array", "map"}

// samples are a value of each kind.
var samples = map[string]string{"nil": "nil", "bool": "true", "int": "1", "str": `"x"`, "bin": "h'00'", "array": "[]", "map": "{}"}

// variants writes a line with "not(str)" once for every kind but that.
func variants(line string) (all []string) {
	before, rest, ok := strings.Cut(line, "not(")
	if !ok {
		return []string{line}
	}
	excepted, after, _ := strings.Cut(rest, ")")
	for _, kind := range expand("not " + strings.ReplaceAll(excepted, " ", "")) {
		all = append(all, variants(before+samples[kind]+after)...)
	}
	return all
}

// ShownBy tells that an exchange shows the row.
func (r Row) ShownBy(x Exchange) bool {
	code, _ := x.Heard.Get("code").Str()
	answer := x.Answer
	if answer == "ERR" {
		answer += " " + code
	}
	name, about := x.Name, x.P
	if name == "push" {
		about = x.Heard
	}
	if numbers[name] == 0 && name != "push" {
		name = "other"
	}
	return name == r.Message && answer == r.Answer && holds(r.When, x.State, about)
}

func holds(when, state string, p overhop.Raw) bool {
	path, condition, _ := strings.Cut(when, " ")
	switch path {
	case "-":
		return true
	case "state":
		return state == condition
	}
	at, given := p, true
	for _, key := range strings.Split(path, ".") {
		if key == "0" {
			next := overhop.Raw(nil)
			for item := range at.Items() {
				next = item
				break
			}
			at, given = next, len(next) > 0
			continue
		}
		at = at.Get(key)
		given = len(at) > 0
	}
	n, isInt := at.Int()
	text, _ := at.Str()
	switch {
	case condition == "missing":
		return !given
	case condition == "any":
		return given
	case strings.HasPrefix(condition, "<"), strings.HasPrefix(condition, ">"):
		bound, err := strconv.ParseInt(condition[1:], 10, 64)
		return err == nil && isInt && (condition[0] == '<' && n < bound || condition[0] == '>' && n > bound)
	case strings.HasPrefix(condition, "="):
		return given && (text == condition[1:] || isInt && strconv.FormatInt(n, 10) == condition[1:])
	}
	return at.Kind() != 0 && slices.Index(kinds, condition)+1 == int(at.Kind())
}
