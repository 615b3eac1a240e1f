package query

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Query is a condition that jobs match, and the order in which they are listed.
type Query struct {
	Where Expr // nil: all jobs
	Sort  Sort
}

// Sort is an order of jobs: by a time, and by id where the times are equal. Jobs that have not
// ended are the newest by the time of their end.
type Sort struct {
	ByEnd  bool // by the time at which they ended, else by the time at which they were created
	Oldest bool // oldest first, else newest first
	// Since is a time in Unix nanoseconds, or 0. By the end, jobs that ended at or after it are sorted as if
	// they had not ended. With the time of its first page, a job that ends keeps its place in a list that is
	// read in pages: it is neither missed nor listed twice.
	Since int64
}

// Expr is a condition: an [And], [Or], [Not] or [*Term].
type Expr interface {
	write(b *strings.Builder)
	match(d *subject) bool
}

// And matches a job if all of its conditions do. It has at least two, none of which is an And.
type And []Expr

// Or matches a job if one of its conditions does. It has at least two, none of which is an Or.
type Or []Expr

// Not matches a job if its condition does not, which is not a Not.
type Not struct{ Expr Expr }

// Term matches a job if one of its values equals or contains the field's value. A job that has no
// value in the field matches none.
type Term struct {
	Field  Field
	Name   string // of a FieldMeta, FieldParams or FieldLabel
	Values []Value
}

// Value is one of the values of a [Term].
type Value struct {
	// Text is what a text equals or, if Prefix, begins with. A state has its name.
	Text   string
	Prefix bool
	// From and To are the range of a number, of a time in Unix nanoseconds, or of a duration
	// in nanoseconds. From is in it, To is not; math.MinInt64 and math.MaxInt64 are no bounds.
	From, To int64
}

// No bounds of a [Value].
const (
	noFrom = math.MinInt64
	noTo   = math.MaxInt64
)

// String returns the canonical text of the query, of which [Parse] makes an equal query at
// any time and in any zone.
func (q *Query) String() string {
	var b strings.Builder
	if q.Where != nil {
		q.Where.write(&b)
	}
	if text := q.Sort.String(); text != defaultSort {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString("sort:" + text)
	}
	return b.String()
}

const defaultSort = "-created"

// sorts has the orders by their texts.
var sorts = map[string]Sort{
	defaultSort: {}, "created": {Oldest: true}, "-ended": {ByEnd: true}, "ended": {ByEnd: true, Oldest: true},
}

// String returns the text of the order as a query has it: "-ended" is by end, newest first.
func (s Sort) String() string {
	s.Since = 0
	for text, sort := range sorts {
		if s == sort {
			return text
		}
	}
	return ""
}

func (a And) write(b *strings.Builder) {
	for i, x := range a {
		if i > 0 {
			b.WriteByte(' ')
		}
		writeGroup(b, x)
	}
}

// writeGroup writes an expression, an Or in parentheses.
func writeGroup(b *strings.Builder, x Expr) {
	_, or := x.(Or)
	if or {
		b.WriteByte('(')
	}
	x.write(b)
	if or {
		b.WriteByte(')')
	}
}

func (o Or) write(b *strings.Builder) {
	for i, x := range o {
		if i > 0 {
			b.WriteString(" or ")
		}
		x.write(b)
	}
}

func (n Not) write(b *strings.Builder) {
	b.WriteByte('-')
	if _, ok := n.Expr.(And); ok {
		b.WriteByte('(')
		n.Expr.write(b)
		b.WriteByte(')')
		return
	}
	writeGroup(b, n.Expr)
}

func (t *Term) write(b *strings.Builder) {
	switch t.Field {
	case FieldAny:
	case FieldLabel:
		b.WriteString(t.Name + ":")
	case FieldMeta, FieldParams:
		b.WriteString(t.Field.String() + "." + quoteName(t.Name) + ":")
	default:
		b.WriteString(t.Field.String() + ":")
	}
	for i, v := range t.Values {
		if i > 0 {
			b.WriteByte(',')
		}
		switch fields[t.Field].kind {
		case textKind, stateKind:
			b.WriteString(v.quoted(t.Field == FieldAny && i == 0))
		case numberKind:
			b.WriteString(v.numbers())
		case timeKind:
			b.WriteString(v.times(t.Field == FieldSince))
		case durationKind:
			b.WriteString(v.durations())
		}
	}
}

// quoted returns the text of v as a query has it. Bare is whether no field is before it.
func (v Value) quoted(bare bool) string {
	text := v.Text
	if text == "" && !v.Prefix || needsQuotes(text) ||
		bare && (text != "" && text[0] == '-' || strings.Contains(text, ":") || keyword(text) != "" && !v.Prefix) {
		text = quote(text)
	}
	if v.Prefix {
		text += "*"
	}
	return text
}

// numbers writes no number above math.MaxUint32, which Parse would not read.
func (v Value) numbers() string {
	switch {
	case v.To == noTo && v.From > math.MaxUint32:
		return fmt.Sprintf(">%d", v.From-1)
	case v.To == noTo:
		return fmt.Sprintf(">=%d", v.From)
	case v.From == noFrom && v.To > math.MaxUint32:
		return fmt.Sprintf("<=%d", v.To-1)
	case v.From == noFrom:
		return fmt.Sprintf("<%d", v.To)
	case v.To == v.From+1:
		return strconv.FormatInt(v.From, 10)
	}
	return fmt.Sprintf("%d..%d", v.From, v.To-1)
}

func (v Value) times(since bool) string {
	format := func(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }
	switch {
	case since:
		return format(v.From)
	case v.To == noTo:
		return ">=" + format(v.From)
	case v.From == noFrom:
		return "<" + format(v.To)
	}
	return format(v.From) + "..<" + format(v.To)
}

// durations prefers the bound that has fewer digits: ">2s" is ">=2.000000001s".
func (v Value) durations() string {
	format := func(ns int64) string { return duration.Format(time.Duration(ns)) }
	switch {
	case v.To == noTo && v.From%1000 == 1:
		return ">" + format(v.From-1)
	case v.To == noTo:
		return ">=" + format(v.From)
	case v.From == noFrom && v.To%1000 == 1:
		return "<=" + format(v.To-1)
	case v.From == noFrom:
		return "<" + format(v.To)
	case v.To%1000 == 1:
		return format(v.From) + ".." + format(v.To-1)
	}
	return format(v.From) + "..<" + format(v.To)
}

// special reports whether a rune ends a text that is not in quotes.
func special(r rune) bool {
	return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(`"(),*`, r)
}

// needsQuotes reports whether a value must be in quotes.
func needsQuotes(text string) bool {
	return strings.IndexFunc(text, special) >= 0 || isComparison(text) || isNumberRange(text)
}

func isComparison(text string) bool { return text != "" && (text[0] == '<' || text[0] == '>') }

// isNumberRange reports whether a text is what a range of numbers would be written as.
func isNumberRange(text string) bool {
	low, high, ok := strings.Cut(text, "..")
	if !ok {
		return false
	}
	_, lowErr := strconv.ParseFloat(low, 64)
	_, highErr := strconv.ParseFloat(strings.TrimPrefix(high, "<"), 64)
	return lowErr == nil && highErr == nil
}

// quoteName returns the name of a label as a query has it.
func quoteName(name string) string {
	if name == "" || strings.IndexFunc(name, func(r rune) bool { return special(r) || r == ':' }) >= 0 {
		return quote(name)
	}
	return name
}

var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

func quote(text string) string { return `"` + escapes.Replace(text) + `"` }

// keyword returns "and", "or" or "not" if text is this word, else "".
func keyword(text string) string {
	if word := strings.ToLower(text); word == "and" || word == "or" || word == "not" {
		return word
	}
	return ""
}
