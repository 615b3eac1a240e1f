package query

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/internal/similar"
	"github.com/yardmaster-dev/yardmaster/job"
)

// Bounds of a query.
const (
	MaxLength = 16 << 10 // bytes, also of the canonical text
	MaxValues = 256      // of all terms
	MaxDepth  = 32       // of parentheses and exclusions
)

// Options is what a query is read with.
type Options struct {
	Now      time.Time      // to which relative times refer
	Location *time.Location // of dates and times without an offset; nil: UTC
	// Params are the paths of the params that are indexed, such as params.customer: a term of another
	// path is an error, unless HasLabel reports that jobs have it, which were accepted while it was
	// indexed. Nil: all paths are accepted.
	Params   []string
	HasLabel func(*Term) bool // reports whether a job has any value of the label that a term names; nil: none has
	// HasQueue reports whether a queue exists: a query that is nothing but its name, a colon and a text finds
	// the job with this key, too. Nil: none exists.
	HasQueue func(name string) bool
}

// SyntaxError is what is wrong with a query, and where.
type SyntaxError struct {
	Offset  int // of the faulty part, in bytes
	Length  int // 0 at the end of the query
	Problem string
	Advice  string // what to write instead
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("query, at byte %d: %s; %s", e.Offset, e.Problem, e.Advice)
}

// Parse returns the query that text denotes. An empty text is a query that all jobs match. The
// error is a [*SyntaxError].
func Parse(text string, options Options) (*Query, error) {
	if len(text) > MaxLength {
		return nil, tooLong(len(text))
	}
	for i, r := range text {
		if _, size := utf8.DecodeRuneInString(text[i:]); r == utf8.RuneError && size == 1 {
			return nil, &SyntaxError{i, 1, "a byte is not UTF-8", "write the query in UTF-8"}
		}
	}
	if options.Location == nil {
		options.Location = time.UTC
	}
	p := &parser{text: text, options: options}
	where, err := p.or(0)
	if err == nil && p.next() == ')' {
		err = p.fail(p.pos, 1, "no parenthesis is open here", "remove this one, or quote it")
	}
	if err != nil {
		return nil, err
	}
	q := &Query{Where: p.named(where), Sort: p.sort}
	if n := len(q.String()); n > MaxLength {
		return nil, tooLong(n)
	}
	return q, nil
}

// named returns a condition that finds the job, too, that one of only a queue's name, a colon, and a key or an id
// names.
func (p *parser) named(where Expr) Expr {
	t, ok := where.(*Term)
	if !ok || t.Field != FieldLabel || len(t.Values) != 1 || t.Values[0].Prefix {
		return where
	}
	if _, err := job.ParseID(t.Values[0].Text); err == nil { // the queue may have been removed
		return &Term{Field: FieldID, Values: t.Values}
	}
	if p.options.HasQueue == nil || !p.options.HasQueue(t.Name) {
		return where
	}
	return Or{t, keyOf(t)}
}

func tooLong(n int) *SyntaxError {
	return &SyntaxError{MaxLength, max(0, n-MaxLength), fmt.Sprintf("the query has %d bytes", n), fmt.Sprintf("write at most %d bytes", MaxLength)}
}

// parser reads a query by recursive descent.
type parser struct {
	text    string
	pos     int
	options Options
	values  int
	sort    Sort
	sorted  bool // there was a term sort
}

// fail returns an error. It has the type error, so that no nil pointer becomes one.
func (p *parser) fail(offset, length int, problem, advice string, args ...any) error {
	return &SyntaxError{Offset: offset, Length: length, Problem: problem, Advice: fmt.Sprintf(advice, args...)}
}

// next skips spaces and returns the byte after them, 0 at the end.
func (p *parser) next() byte {
	rest := strings.TrimLeftFunc(p.text[p.pos:], unicode.IsSpace)
	p.pos = len(p.text) - len(rest)
	if rest == "" {
		return 0
	}
	return rest[0]
}

// peekWord returns the keyword at the current position, in lower case, or "".
func (p *parser) peekWord() string {
	p.next()
	rest := p.text[p.pos:]
	end := strings.IndexFunc(rest, func(r rune) bool { return unicode.IsSpace(r) || r == '(' || r == ')' })
	if end < 0 {
		end = len(rest)
	}
	return keyword(rest[:end])
}

// or reads conditions with "or" between them. It returns nil if no condition follows.
func (p *parser) or(depth int) (Expr, error) {
	var all Or
	for {
		start := p.pos
		x, err := p.and(depth)
		if err != nil {
			return nil, err
		}
		more := p.peekWord() == "or"
		if x == nil && (more || len(all) > 0) {
			if more {
				start = p.pos
			}
			return nil, p.fail(start, min(2, len(p.text)-start), "a term is missing beside \"or\"", "write terms on both sides, or quote the word: \"or\"")
		}
		if inner, ok := x.(Or); ok {
			all = append(all, inner...)
		} else if x != nil {
			all = append(all, x)
		}
		if !more {
			break
		}
		p.pos += len("or")
	}
	switch len(all) {
	case 0:
		return nil, nil
	case 1:
		return all[0], nil
	}
	return all, nil
}

// and reads conditions up to an "or", a closing parenthesis or the end.
func (p *parser) and(depth int) (Expr, error) {
	var all And
	pending := -1 // position of an "and" that needs another term
	for {
		c, word := p.next(), p.peekWord()
		if c == 0 || c == ')' || word == "or" {
			break
		}
		if word == "and" {
			if len(all) == 0 || pending >= 0 {
				return nil, p.fail(p.pos, len(word), "a term is missing before \"and\"", "write terms on both sides, or quote the word: \"and\"")
			}
			pending = p.pos
			p.pos += len(word)
			continue
		}
		x, err := p.unary(depth)
		if err != nil {
			return nil, err
		}
		pending = -1
		if inner, ok := x.(And); ok {
			all = append(all, inner...)
		} else if x != nil {
			all = append(all, x)
		}
	}
	if pending >= 0 {
		return nil, p.fail(pending, len("and"), "a term is missing after \"and\"", "write terms on both sides, or quote the word: \"and\"")
	}
	switch len(all) {
	case 0:
		return nil, nil
	case 1:
		return all[0], nil
	}
	return all, nil
}

// unary reads one condition. It returns nil for a sort.
func (p *parser) unary(depth int) (Expr, error) {
	start := p.pos
	if depth > MaxDepth {
		return nil, p.fail(start, 1, fmt.Sprintf("the query is nested more than %d deep", MaxDepth), "remove parentheses, or search twice")
	}
	not := p.peekWord() == "not"
	switch {
	case not:
		p.pos += len("not")
	case p.text[p.pos] == '-':
		not = true
		p.pos++
	case p.text[p.pos] == '(':
		return p.group(depth + 1)
	default:
		return p.term(depth)
	}
	if c, word := p.next(), p.peekWord(); c == 0 || c == ')' || word == "or" || word == "and" {
		return nil, p.fail(start, p.pos-start, "a term is missing after the exclusion", "write -field:text, or quote the text if it is not an exclusion")
	}
	x, err := p.unary(depth + 1)
	if err != nil {
		return nil, err
	}
	if inner, ok := x.(Not); ok {
		return inner.Expr, nil
	}
	return Not{x}, nil
}

// group reads a condition in parentheses.
func (p *parser) group(depth int) (Expr, error) {
	start := p.pos
	p.pos++
	x, err := p.or(depth)
	if err != nil {
		return nil, err
	}
	if p.next() != ')' {
		return nil, p.fail(start, 1, "this parenthesis is not closed", "write ) after the last term in it")
	}
	p.pos++
	if x == nil {
		return nil, p.fail(start, p.pos-start, "there is no term in these parentheses", "write one, or quote them")
	}
	return x, p.ended("the closing parenthesis")
}

// ended returns an error if neither a space nor a closing parenthesis follows.
func (p *parser) ended(what string) error {
	rest := p.text[p.pos:]
	r, size := utf8.DecodeRuneInString(rest)
	if rest == "" || r == ')' || unicode.IsSpace(r) {
		return nil
	}
	if r == '*' {
		return p.fail(p.pos, size, "* is only allowed at the end of a text", "write the beginning of the text and *, or quote a text that has a *: \"a*b\"")
	}
	return p.fail(p.pos, size, fmt.Sprintf("%q follows %s directly", r, what), "write a space between them, or quote a text that has this character")
}

// term reads a term. It returns nil for a sort, which it keeps.
func (p *parser) term(depth int) (Expr, error) {
	start := p.pos
	field, name, err := p.field()
	if err != nil {
		return nil, err
	}
	if field == fieldSort {
		return nil, p.order(start, depth)
	}
	t := &Term{Field: field, Name: name}
	for {
		v, err := p.value(start, t)
		if err != nil {
			return nil, err
		}
		t.Values = append(t.Values, v)
		if p.values++; p.values > MaxValues {
			return nil, p.fail(start, p.pos-start, fmt.Sprintf("the query has more than %d values", MaxValues), "search for fewer at a time")
		}
		if !strings.HasPrefix(p.text[p.pos:], ",") {
			return t, p.ended("the value")
		}
		p.pos++
	}
}

// field reads the name of a field or a label, and the colon after it. In front of a word without
// a field it reads nothing and returns FieldAny.
func (p *parser) field() (Field, string, error) {
	start := p.pos
	written, end := p.fieldName()
	if end < 0 {
		return FieldAny, "", nil
	}
	length := end - start
	p.pos = end + 1
	if f, ok := fieldByName(written); ok {
		return f, "", nil
	}
	before, after, dotted := strings.Cut(written, ".")
	for _, f := range []Field{FieldMeta, FieldParams} {
		switch {
		case !strings.EqualFold(before, f.String()):
		case !dotted || after == "":
			return 0, "", p.fail(start, length, f.String()+" is not a field without a name", "write a name after a dot: %s.customer:acme", f)
		case f == FieldParams && !p.isIndexed(after):
			return 0, "", p.notIndexed(start, length, after)
		default:
			return f, after, nil
		}
	}
	return p.label(start, length, written)
}

// isIndexed reports whether params of a path are, or were, indexed.
func (p *parser) isIndexed(name string) bool {
	o := &p.options
	return o.Params == nil || slices.Contains(o.Params, "params."+name) || o.HasLabel != nil && o.HasLabel(&Term{Field: FieldParams, Name: name})
}

// notIndexed returns the error of a term of params that no queue indexes.
func (p *parser) notIndexed(start, length int, name string) error {
	const shown = 16
	names := make([]string, min(len(p.options.Params), shown))
	for i := range names {
		names[i] = strings.TrimPrefix(p.options.Params[i], "params.")
	}
	problem := fmt.Sprintf("no queue indexes params.%s", quoteName(name))
	if like := similar.Name(name, names); like != "" {
		return p.fail(start, length, problem, "did you mean params.%s?", quoteName(like))
	}
	advice := fmt.Sprintf("'yardmaster queue set <queue> --index %s' indexes it in jobs that are accepted from then on", shellWord("params."+name))
	if len(names) > 0 {
		advice += "; indexed are params." + strings.Join(names, ", params.")
	}
	if len(names) < len(p.options.Params) {
		advice += " and others"
	}
	return p.fail(start, length, problem, "%s", advice)
}

// shellWord returns text as one word of a command line.
func shellWord(text string) string {
	if strings.IndexFunc(text, func(r rune) bool { return special(r) || strings.ContainsRune("'$`\\!&;|<>?[]{}~#", r) }) < 0 {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// fieldName returns the name at the current position without quotes, and the position of the
// colon after it, which is negative if this is a text without a field.
func (p *parser) fieldName() (string, int) {
	for _, prefix := range []string{"meta.", "params."} {
		rest := p.text[p.pos:]
		if len(rest) <= len(prefix) || !strings.EqualFold(rest[:len(prefix)], prefix) || rest[len(prefix)] != '"' {
			continue
		}
		name, n := unquote(rest[len(prefix):])
		if end := len(prefix) + n; n > 0 && strings.HasPrefix(rest[end:], ":") {
			return prefix + name, p.pos + end
		}
	}
	for i, r := range p.text[p.pos:] {
		if r == ':' {
			return p.text[p.pos : p.pos+i], p.pos + i
		}
		if special(r) {
			break
		}
	}
	return "", -1
}

// otherNames are words that people write for fields.
var otherNames = map[string]string{
	"accepted": "created", "duration": "took", "finished": "ended", "job": "id", "message": "text", "retries": "attempts", "runtime": "took", "status": "state", "type": "error",
}

// label returns a label's name, unless it is a misspelling of a field's, or another word for a field: such a
// label must follow "meta." or "params.".
func (p *parser) label(start, length int, name string) (Field, string, error) {
	if name == "" {
		return 0, "", p.fail(start, 1, "no field is before the colon", "write field:text, or quote a text that has a colon: \"a:b\"")
	}
	if like := cmp.Or(similar.Name(name, fieldNames()), otherNames[strings.ToLower(name)]); like != "" {
		return 0, "", p.fail(start, length, fmt.Sprintf("no field is called %q", name), "did you mean %s? A label of this name is meta.%s or params.%s", like, quoteName(name), quoteName(name))
	}
	return FieldLabel, name, nil
}

// fieldNames returns the names of all fields but meta and params.
func fieldNames() []string {
	var names []string
	for f := FieldID; f <= fieldSort; f++ {
		if !f.named() {
			names = append(names, f.String())
		}
	}
	return names
}

// order reads the value of a term sort.
func (p *parser) order(start, depth int) error {
	from := p.pos
	rest := p.text[from:]
	end := strings.IndexFunc(rest, func(r rune) bool { return unicode.IsSpace(r) || r == ')' })
	if end < 0 {
		end = len(rest)
	}
	p.pos += end
	by, ok := sorts[strings.ToLower(rest[:end])]
	switch {
	case depth > 0:
		return p.fail(start, p.pos-start, "sort is in parentheses or excluded", "write it once, outside of them")
	case p.sorted:
		return p.fail(start, p.pos-start, "there is more than one sort", "write one")
	case !ok:
		return p.fail(from, end, fmt.Sprintf("jobs cannot be sorted by %q", rest[:end]), "write sort:created, sort:ended, sort:-created or sort:-ended; - is newest first")
	}
	p.sort, p.sorted = by, true
	return nil
}
