package query

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/internal/similar"
	"github.com/yardmaster-dev/yardmaster/job"
)

// unquote returns the text of the quoted text at the beginning of s, and how long that is with
// its quotes; 0 if it is not closed.
func unquote(s string) (string, int) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), i + 1
		case c == '\\' && i+1 < len(s) && (s[i+1] == '"' || s[i+1] == '\\'):
			i++
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", 0
}

// value reads a value of term t, which begins at start.
func (p *parser) value(start int, t *Term) (Value, error) {
	from := p.pos
	rest := p.text[from:]
	v := Value{}
	quoted := strings.HasPrefix(rest, `"`)
	if quoted {
		text, n := unquote(rest)
		if n == 0 {
			return v, p.fail(from, len(rest), "the quoted text is not closed", "write \" after it; inside of it \\\" is a quote")
		}
		v.Text = text
		p.pos += n
	} else {
		end := strings.IndexFunc(rest, special)
		if end < 0 {
			end = len(rest)
		}
		v.Text = rest[:end]
		p.pos += end
	}
	if strings.HasPrefix(p.text[p.pos:], "*") {
		v.Prefix = true
		p.pos++
	}
	if v.Text == "" && !v.Prefix {
		return v, p.missing(start, from, quoted, t)
	}
	read := valueReader{p, t, v.Text, from, p.pos - from, quoted, v.Prefix}
	switch fields[t.Field].kind {
	case stateKind:
		return read.state()
	case numberKind:
		return read.ranged(read.number)
	case timeKind:
		return read.time()
	case durationKind:
		return read.ranged(read.duration)
	}
	return read.textValue()
}

// missing returns the error for an empty value.
func (p *parser) missing(start, from int, quoted bool, t *Term) error {
	switch {
	case quoted:
		return p.fail(from, 2, "no job has an empty text", "write a text; -%s* finds jobs that have none", p.text[start:from])
	case p.pos < len(p.text) && p.text[p.pos] == '(':
		return p.fail(p.pos, 1, "a parenthesis is where a value should be", "write values with commas between them: a,b")
	case t.Field == FieldAny:
		_, size := utf8.DecodeRuneInString(p.text[from:])
		return p.fail(from, size, "a term is missing here", "write field:text, or quote punctuation")
	}
	const problem, advice = "a value is missing", "write one after the colon or the comma"
	if fields[t.Field].kind != textKind {
		return p.fail(start, from-start, problem, advice)
	}
	var written strings.Builder
	(&Term{Field: t.Field, Name: t.Name}).write(&written)
	return p.fail(start, from-start, problem, advice+"; %s* finds all jobs that have one", written.String())
}

// valueReader reads the values of each kind.
type valueReader struct {
	p            *parser
	term         *Term
	text         string
	from, length int
	quoted       bool
	prefix       bool
}

func (r *valueReader) fail(problem, advice string, args ...any) error {
	return r.p.fail(r.from, r.length, problem, advice, args...)
}

// assigned matches the name of a field with a sign that is not a colon.
var assigned = regexp.MustCompile(`(?i)^(` + strings.Join(fieldNames(), "|") + `)(!=|==?)(.+)$`)

func (r *valueReader) textValue() (Value, error) {
	v := Value{Text: r.text, Prefix: r.prefix}
	switch f := r.term.Field; {
	case !r.quoted && isComparison(r.text):
		return v, r.fail("only numbers, times and durations can be compared", "quote the text if it begins with %q", r.text[0])
	case !r.quoted && !r.prefix && isNumberRange(r.text):
		return v, r.fail("only fields of numbers, times and durations have ranges; this one is a text", "write each value, or quote the text")
	case f == FieldID && !r.prefix:
		id, err := job.ParseID(r.text)
		if err != nil {
			return v, r.fail("an id is a UUID", "write all of it, or its beginning and *")
		}
		v.Text = id.String()
	case f == FieldAny && !r.quoted && assigned.MatchString(r.text):
		part := assigned.FindStringSubmatch(r.text)
		if part[2] == "!=" {
			part[1] = "-" + part[1]
		}
		return v, r.fail("a field is followed by a colon", "write %s:%s, or quote the text", part[1], part[3])
	case f == FieldText && len(Words(r.text)) == 0 && r.text != "":
		return v, r.fail("the text has no word", "write letters or digits; punctuation is not searched")
	}
	return v, nil
}

func (r *valueReader) state() (Value, error) {
	names := stateNames()
	switch name := strings.ToLower(r.text); {
	case r.prefix:
		return Value{}, r.fail("states have no prefixes", "write state:failed,cancelled for one of several")
	case slices.Contains(names, name):
		return Value{Text: name}, nil
	}
	advice := "the states are " + strings.Join(names, ", ")
	if like := similar.Name(r.text, names); like != "" {
		advice = "did you mean " + like + "? T" + strings.TrimPrefix(advice, "t")
	}
	return Value{}, r.fail(fmt.Sprintf("there is no state %q", r.text), "%s", advice)
}

// bounds splits a value into its comparison, or the two ends of a range: ">", ">=", "<", "<=",
// "..", "..<", or "" for a value alone. A range has both ends.
func (r *valueReader) bounds() (operator, low, high string, err error) {
	for _, operator := range []string{">=", "<=", ">", "<"} {
		if rest, ok := strings.CutPrefix(r.text, operator); ok {
			return operator, rest, "", nil
		}
	}
	low, high, ok := strings.Cut(r.text, "..")
	if !ok {
		return "", low, "", nil
	}
	operator = ".."
	if rest, ok := strings.CutPrefix(high, "<"); ok {
		operator, high = "..<", rest
	}
	switch {
	case low == "" && high == "":
		err = r.fail("the range has no ends", "write them before and after the points")
	case low == "":
		err = r.fail("the range has no beginning", "write %s:%s%s", r.term.Field, cmp.Or(strings.TrimPrefix(operator, ".."), "<="), high)
	case high == "":
		err = r.fail("the range has no end", "write %s:>=%s", r.term.Field, low)
	}
	return operator, low, high, err
}

// ranged reads a value of numbers, given how to read one.
func (r *valueReader) ranged(read func(text string) (int64, error)) (Value, error) {
	if r.prefix {
		return Value{}, r.fail("the value is not a text, so it has no prefixes", "write %s:>=… or a range", r.term.Field)
	}
	v := Value{From: noFrom, To: noTo}
	operator, low, high, err := r.bounds()
	if err != nil {
		return v, err
	}
	n, err := read(low)
	if err != nil {
		return v, err
	}
	if operator == "" && fields[r.term.Field].kind == durationKind {
		return v, r.fail("hardly a job took exactly so long", "write %s:>%s, %s:<%s or a range", r.term.Field, r.text, r.term.Field, r.text)
	}
	switch operator {
	case "":
		v.From, v.To = n, n+1
	case ">":
		v.From = n + 1
	case ">=":
		v.From = n
	case "<":
		v.To = n
	case "<=":
		v.To = n + 1
	default:
		to, err := read(high)
		if err != nil {
			return v, err
		}
		if operator == ".." {
			to++
		}
		v.From, v.To = n, to
	}
	if v.From >= v.To {
		return v, r.emptyRange()
	}
	return v, nil
}

func (r *valueReader) emptyRange() error {
	return r.fail("the range has nothing in it", "write the smaller value first")
}

func (r *valueReader) number(text string) (int64, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, r.fail(fmt.Sprintf("%q is not a number from 0 to %d", text, uint32(math.MaxUint32)), "write %s:3, %s:>3 or %s:2..5", r.term.Field, r.term.Field, r.term.Field)
	}
	return int64(n), nil
}

func (r *valueReader) duration(text string) (int64, error) {
	d, err := duration.Parse(text)
	if err != nil || d < 0 || d > duration.Max {
		return 0, r.fail(fmt.Sprintf("%q is not a duration", text), "write %s:>2s, with a unit: ms, s, m, h or d", r.term.Field)
	}
	return int64(d), nil
}

// span is the period that a written time denotes: from is in it, to is not. A single moment has
// two equal times.
type span struct {
	from, to time.Time
	clock    bool // a time of day, of the last day on which it has passed
}

// time reads a value of times.
func (r *valueReader) time() (Value, error) {
	v := Value{From: noFrom, To: noTo}
	if r.prefix {
		return v, r.fail("a time has no prefixes", "write %s:2026-11-01 for all of a day", r.term.Field)
	}
	operator, low, high, err := r.bounds()
	if r.term.Field == FieldSince && operator != "" {
		return v, r.fail("since has the time at which it begins", "write since:1h or since:2026-11-01; ended:%s compares", r.text)
	}
	if err != nil {
		return v, err
	}
	s, err := r.span(low)
	if err != nil {
		return v, err
	}
	switch {
	case r.term.Field == FieldSince || operator == "" && s.from.Equal(s.to) || operator == ">=":
		v.From = s.from.UnixNano()
	case operator == "":
		v.From, v.To = s.from.UnixNano(), s.to.UnixNano()
	case operator == ">":
		v.From = s.to.UnixNano()
	case operator == "<":
		v.To = s.from.UnixNano()
	case operator == "<=":
		v.To = s.to.UnixNano()
	default:
		end, err := r.span(high)
		if err != nil {
			return v, err
		}
		if end.clock && (s.to.After(s.from) || end.from.Before(s.from)) {
			end = end.firstAfter(s.from)
		}
		v.From, v.To = s.from.UnixNano(), end.to.UnixNano()
		if operator == "..<" {
			v.To = end.from.UnixNano()
		}
	}
	if v.From >= v.To {
		return v, r.emptyRange()
	}
	for _, ns := range []int64{v.From, v.To} {
		if year := time.Unix(0, ns).UTC().Year(); ns != noFrom && ns != noTo && (year < 1970 || year > 2200) {
			return v, r.outOfRange()
		}
	}
	return v, nil
}

func (r *valueReader) outOfRange() error {
	return r.fail(fmt.Sprintf("the time %q is out of range", r.text), "write one in the years 1970 to 2200")
}

// firstAfter returns the time of day s on the first day on which it is not before t.
func (s span) firstAfter(t time.Time) span {
	length := s.to.Sub(s.from)
	t = t.In(s.from.Location())
	s.from = time.Date(t.Year(), t.Month(), t.Day(), s.from.Hour(), s.from.Minute(), s.from.Second(), 0, t.Location())
	if s.from.Before(t) {
		s.from = s.from.AddDate(0, 0, 1)
	}
	s.to = s.from.Add(length)
	return s
}

// layouts are the ways to write a time, and the end of the period that each denotes.
var layouts = []struct {
	layout string
	clock  bool
	end    func(time.Time) time.Time
}{
	{time.RFC3339Nano, false, nil}, // see span
	{"2006-01-02T15:04Z07:00", false, plus(time.Minute)},
	{"2006-01-02T15:04:05", false, nil},
	{"2006-01-02T15:04", false, plus(time.Minute)},
	{"2006-01-02", false, func(t time.Time) time.Time { return t.AddDate(0, 0, 1) }},
	{"2006-01", false, func(t time.Time) time.Time { return t.AddDate(0, 1, 0) }},
	{"15:04:05", true, nil},
	{"15:04", true, plus(time.Minute)},
}

func plus(d time.Duration) func(time.Time) time.Time {
	return func(t time.Time) time.Time { return t.Add(d) }
}

// span returns the period that a written time denotes.
func (r *valueReader) span(text string) (span, error) {
	now := r.p.options.Now.In(r.p.options.Location)
	midnight := time.Date(now.Year(), now.Month(), now.Day(), 0, 0, 0, 0, now.Location())
	s, ok := span{}, true
	switch strings.ToLower(text) {
	case "now":
		s.from, s.to = now, now
	case "today":
		s.from, s.to = midnight, midnight.AddDate(0, 0, 1)
	case "yesterday":
		s.from, s.to = midnight.AddDate(0, 0, -1), midnight
	default:
		if d, err := duration.Parse(text); err == nil && d >= 0 {
			s.from = now.Add(-d)
			s.to = s.from
			break
		}
		s, ok = parseSpan(strings.ToUpper(text), now, midnight)
	}
	if !ok {
		return s, r.fail(fmt.Sprintf("%q is not a time", text), "write 1h or 3d (ago), today, 14:05, 2026-11-01 or 2026-11-01T14:05")
	}
	if s.from.Year() < 1960 || s.to.Year() > 2210 { // outside of which UnixNano may overflow
		return s, r.outOfRange()
	}
	return s, nil
}

// precision returns the duration of the last digit of a written time with seconds.
func precision(text string) time.Duration {
	_, fraction, _ := strings.Cut(text, ".")
	d := time.Second
	for _, r := range fraction {
		if r < '0' || r > '9' || d == 1 {
			break
		}
		d /= 10
	}
	return d
}

// parseSpan returns the period that a date or a time of day denotes.
func parseSpan(text string, now, midnight time.Time) (span, bool) {
	for _, l := range layouts {
		t, err := time.ParseInLocation(l.layout, text, now.Location())
		if err != nil {
			continue
		}
		if l.clock {
			t = time.Date(midnight.Year(), midnight.Month(), midnight.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), midnight.Location())
			if t.After(now) {
				t = t.AddDate(0, 0, -1)
			}
		}
		end := l.end
		if end == nil {
			end = plus(precision(text))
		}
		return span{t, end(t), l.clock}, true
	}
	return span{}, false
}
