package query

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/internal/similar"
)

// MaxProposals is the largest number of [Proposal] values that [Complete] returns.
const MaxProposals = 50

// Completion is what may be written at a position of a query.
type Completion struct {
	Offset    int        `json:"offset"` // of the part that a proposal replaces, in bytes
	Length    int        `json:"length"`
	Proposals []Proposal `json:"proposals"`
}

// Proposal is one of the texts of a [Completion].
type Proposal struct {
	Text string `json:"text"`           // as the query has it, with quotes if it needs them
	Help string `json:"help,omitempty"` // what a field is
}

// Values returns the values that a field has in documents and that begin with prefix. Field is
// its name in a query, such as "queue", "meta.region" or, of either kind of label, "region".
type Values func(field, prefix string) []string

// Complete returns what may be written at the cursor, which is the number of bytes before it.
// Labels are the names of metadata and indexed params.
func Complete(text string, cursor int, labels []string, values Values) Completion {
	cursor = max(0, min(cursor, len(text)))
	for cursor > 0 && cursor < len(text) && !utf8.RuneStart(text[cursor]) {
		cursor--
	}
	at := locate(text[:cursor])
	c := Completion{Offset: at.value, Length: partLength(text, at.value, cursor) - at.value, Proposals: []Proposal{}}
	written := unquotedStart(text[at.value:cursor])
	if at.field == "" {
		c.Proposals = proposeTerms(written, labels)
		if strings.HasPrefix(text[at.value+c.Length:], ":") {
			c.Length++ // the colon of the field that is replaced
		}
	} else {
		c.Proposals = proposeValues(at.field, written, values)
	}
	if len(c.Proposals) > MaxProposals {
		c.Proposals = c.Proposals[:MaxProposals]
	}
	return c
}

// place is where a cursor is: in a value of a field, or in a term that has no field yet.
type place struct {
	field string // "" if there is none yet
	value int    // where the value begins, else the term
}

// locate returns the place of a cursor at the end of text.
func locate(text string) place {
	at, term, quoted := place{}, 0, false
	for i, r := range text {
		switch {
		case quoted:
			quoted = r != '"' || escaped(text[at.value:i])
		case r == '"':
			quoted = true
		case unicode.IsSpace(r) || r == '(' || r == ')' || r == '-' && i == term:
			term = i + utf8.RuneLen(r)
			at = place{value: term}
		case r == ':' && at.field == "":
			at = place{plainName(text[term:i]), i + 1}
		case r == ',' && at.field != "":
			at.value = i + 1
		}
	}
	return at
}

// plainName returns the name of a field or a label without quotes.
func plainName(name string) string {
	before, after, ok := strings.Cut(name, ".")
	if ok && strings.HasPrefix(after, `"`) {
		after, _ = unquote(after)
		return before + "." + after
	}
	return name
}

// escaped reports whether a character after text has a backslash that is not escaped itself.
func escaped(text string) bool {
	return (len(text)-len(strings.TrimRight(text, `\`)))%2 == 1
}

// partLength returns where the value or the name ends that begins at from and has the cursor in it.
func partLength(text string, from, cursor int) int {
	if strings.HasPrefix(text[from:], `"`) {
		if _, n := unquote(text[from:]); n > 0 && from+n >= cursor {
			return from + n
		}
		return cursor
	}
	end := strings.IndexFunc(text[cursor:], func(r rune) bool { return special(r) && r != '*' || r == ':' })
	if end < 0 {
		return len(text)
	}
	return cursor + end
}

// unquotedStart returns the beginning of a value without the quote before it.
func unquotedStart(text string) string {
	if rest, ok := strings.CutPrefix(text, `"`); ok {
		return strings.NewReplacer(`\"`, `"`, `\\`, `\`).Replace(strings.TrimSuffix(rest, `"`))
	}
	return text
}

// proposeTerms returns the fields, labels and words that begin with prefix.
func proposeTerms(prefix string, labels []string) []Proposal {
	found := []Proposal{}
	for f := FieldID; f <= fieldSort; f++ {
		name := f.String() + ":"
		if f == FieldMeta || f == FieldParams {
			name = f.String() + "."
		}
		if f != FieldLabel && hasPrefixFold(name, prefix) {
			found = append(found, Proposal{name, fields[f].help})
		}
	}
	for _, l := range labels {
		name := l
		if similar.Name(l, fieldNames()) != "" || quoteName(l) != l || strings.HasPrefix(l, "-") {
			name = FieldMeta.String() + "." + quoteName(l) // which is not taken for a field
		}
		if strings.HasPrefix(l, prefix) {
			found = append(found, Proposal{name + ":", "label"})
		}
	}
	for _, f := range []Field{FieldMeta, FieldParams} {
		if rest, ok := strings.CutPrefix(prefix, f.String()+"."); ok {
			for _, l := range labels {
				if strings.HasPrefix(l, unquotedStart(rest)) {
					found = append(found, Proposal{f.String() + "." + quoteName(l) + ":", fields[f].help})
				}
			}
		}
	}
	return found
}

// times are proposals for the fields that have a time.
var times = []string{"15m", "1h", "24h", "7d", "today", "yesterday"}

// proposeValues returns the values of a field that begin with prefix.
func proposeValues(name, prefix string, values Values) []Proposal {
	var texts []string
	f, ok := fieldByName(name)
	switch {
	case f == fieldSort:
		texts = []string{defaultSort, "created", "-ended", "ended"}
	case ok && fields[f].kind == stateKind:
		texts = stateNames()
	case ok && fields[f].kind == timeKind:
		texts = times
	case ok && fields[f].kind == durationKind:
		texts = []string{">1s", ">10s", ">1m", ">10m"}
	case ok && fields[f].kind == numberKind:
		texts = []string{">1", ">3"}
	case ok && f == FieldID || f == FieldText || values == nil:
		return []Proposal{}
	default:
		texts = values(cmp.Or(f.String(), name), prefix)
	}
	found := []Proposal{}
	for _, text := range texts {
		switch {
		case !hasPrefixFold(text, prefix) || text == "":
		case ok && fields[f].kind != textKind || f == fieldSort:
			found = append(found, Proposal{Text: text})
		default:
			found = append(found, Proposal{Text: Value{Text: text}.quoted(false)})
		}
	}
	return slices.CompactFunc(found, func(a, b Proposal) bool { return a == b })
}

// hasPrefixFold reports whether text begins with prefix, in either case.
func hasPrefixFold(text, prefix string) bool {
	return len(text) >= len(prefix) && strings.EqualFold(text[:len(prefix)], prefix)
}
