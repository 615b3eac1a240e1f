package wirescript

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
)

// Row is one rule of the protocol's tables that some conversation must cover: a
// message, a condition on its payload, and the resulting answer.
type Row struct {
	Message    string // of a request, or "push"
	When       string // condition: "-", "state fresh", "q missing", "q not", "n <0", "n >9", "n =9", "q int"
	Answer     string // OK, HI, PONG, "ERR CODE", or a push's name
	Untestable string // why no conversation can cover it; "" if one must

	line int
}

func (r Row) String() string {
	return fmt.Sprintf("line %d: %s, %s: %s", r.line, r.Message, r.When, r.Answer)
}

// LoadRows reads a table of four columns separated by tabs: message, condition,
// answer, and why the row cannot be covered. A condition "a|b" means two
// rows, "not str" for one row of every other kind, and "not str,nil" leaves nil
// out as well.
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
			return nil, fmt.Errorf("%s:%d: want three or four columns", file, i+1)
		}
		if typeByName[f[0]] == 0 && f[0] != "push" && f[0] != "other" {
			return nil, fmt.Errorf("%s:%d: %q is not a message", file, i+1, f[0])
		}
		path, conditions, _ := strings.Cut(f[1], " ")
		for _, condition := range strings.Split(conditions, "|") {
			for _, expanded := range expandCondition(condition) {
				rows = append(rows, Row{f[0], strings.TrimSpace(path + " " + expanded), f[2], f[3], i + 1})
			}
		}
	}
	return rows, nil
}

// expandCondition returns the kinds that a condition "not kind,…" means, or
// else the condition itself.
func expandCondition(condition string) (all []string) {
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

// kinds are the names of the kinds of a value, in the order of [overhop.Kind].
var kinds = []string{"nil", "bool", "int", "str", "bin", "array", "map"}

// isKind reports whether a value is of the kind with this name.
func isKind(r overhop.Raw, name string) bool {
	return r.Kind() != 0 && slices.Index(kinds, name)+1 == int(r.Kind())
}

// samples holds a value of each kind.
var samples = map[string]string{"nil": "nil", "bool": "true", "int": "1", "str": `"x"`, "bin": "h'00'", "array": "[]", "map": "{}"}

// variants returns a line that contains "not(str)" once for every other kind, and
// any other line unchanged.
func variants(line string) (all []string) {
	before, rest, ok := strings.Cut(line, "not(")
	if !ok {
		return []string{line}
	}
	excepted, after, _ := strings.Cut(rest, ")")
	for _, kind := range expandCondition("not " + strings.ReplaceAll(excepted, " ", "")) {
		all = append(all, variants(before+samples[kind]+after)...)
	}
	return all
}

// CoveredBy reports whether an exchange is an example of the row.
func (r Row) CoveredBy(x Exchange) bool {
	code, _ := x.Response.Get("code").Str()
	answer := x.Answer
	if answer == "ERR" {
		answer += " " + code
	}
	name, about := x.Name, x.Request
	if name == "push" {
		about = x.Response
	}
	if typeByName[name] == 0 && name != "push" {
		name = "other"
	}
	return name == r.Message && answer == r.Answer && conditionHolds(r.When, x.State, about)
}

// conditionHolds reports whether the condition of a row is true of payload p, sent
// in state. It begins with the path of a field, in which "0" is the first item.
func conditionHolds(when, state string, p overhop.Raw) bool {
	path, condition, _ := strings.Cut(when, " ")
	switch path {
	case "-":
		return true
	case "state":
		return state == condition
	}
	field, given := p, true
	for _, key := range strings.Split(path, ".") {
		if key == "0" {
			next := overhop.Raw(nil)
			for item := range field.Items() {
				next = item
				break
			}
			field, given = next, len(next) > 0
			continue
		}
		field = field.Get(key)
		given = len(field) > 0
	}
	n, isInt := field.Int()
	text, _ := field.Str()
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
	return isKind(field, condition)
}
