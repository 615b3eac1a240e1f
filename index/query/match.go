package query

import (
	"math"
	"strings"
	"time"
	"unicode"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Bounds of what is searched of an error's message.
const (
	maxWords    = 64      // different ones
	maxWordSize = 64      // bytes of one; the rest of it is not searched
	maxSearched = 4 << 10 // bytes
)

// Unended is the [Sort.Value] of a job that has not ended, by its end.
const Unended = math.MaxInt64

// Match reports whether a job matches the query.
func (q *Query) Match(d *job.Document) bool {
	return q.Where == nil || q.Where.match(&subject{Document: d})
}

// Value returns the time by which the job is sorted, in Unix nanoseconds.
func (s Sort) Value(d *job.Document) int64 {
	switch {
	case !s.ByEnd:
		return d.Created.UnixNano()
	case d.Ended.IsZero():
		return Unended
	}
	return s.Floor(d.Ended.UnixNano())
}

// endPrecision is the precision, in nanoseconds, of the ends by which jobs are sorted. The history has
// no better one, so jobs have the same order in an index that was rebuilt from it: the next page may come
// from another node.
const endPrecision = int64(time.Millisecond)

// Floor returns the [Sort.Value] of a job that was accepted, or ended, at a time in Unix nanoseconds.
func (s Sort) Floor(nanos int64) int64 {
	if !s.ByEnd || nanos == Unended || nanos == -Unended {
		return nanos
	}
	floor := nanos - nanos%endPrecision
	if s.Since > 0 && floor >= s.Since-s.Since%endPrecision {
		return Unended
	}
	return floor
}

// Lowest returns the earliest time, in Unix nanoseconds, that has a [Sort.Value].
func (s Sort) Lowest(value int64) int64 {
	if s.ByEnd && s.Since > 0 && value == Unended {
		return s.Since - s.Since%endPrecision
	}
	return value
}

// Ceil returns the latest time, in Unix nanoseconds, that has a [Sort.Value].
func (s Sort) Ceil(value int64) int64 {
	if floor := s.Floor(value); s.ByEnd && floor < Unended-endPrecision {
		return floor + endPrecision - 1
	}
	return value
}

// Fold returns text as fields compare it that ignore case.
func Fold(text string) string { return strings.ToLower(text) }

// Words returns the different words of a text that are searched, folded: letters, digits
// and the marks on them.
func Words(text string) []string {
	if len(text) > maxSearched {
		text = text[:maxSearched]
	}
	var words []string
	seen := make(map[string]bool)
	for word := range strings.FieldsFuncSeq(Fold(text), func(r rune) bool { return !unicode.In(r, unicode.L, unicode.N, unicode.M) }) {
		if len(word) > maxWordSize {
			word = word[:maxWordSize]
		}
		if seen[word] {
			continue
		}
		if seen[word] = true; len(seen) > maxWords {
			break
		}
		words = append(words, word)
	}
	return words
}

// subject is a document, and the words of its error as soon as they are needed.
type subject struct {
	*job.Document
	split bool
	words []string
}

func (d *subject) text() []string {
	if !d.split && d.Fault != nil {
		d.words = Words(d.Fault.Message)
	}
	d.split = true
	return d.words
}

func (a And) match(d *subject) bool {
	for _, x := range a {
		if !x.match(d) {
			return false
		}
	}
	return true
}

func (o Or) match(d *subject) bool {
	for _, x := range o {
		if x.match(d) {
			return true
		}
	}
	return false
}

func (n Not) match(d *subject) bool { return !n.Expr.match(d) }

func (t *Term) match(d *subject) bool {
	for _, v := range t.Values {
		if t.matchValue(d, v) {
			return true
		}
	}
	return false
}

func (t *Term) matchValue(d *subject, v Value) bool {
	switch t.Field {
	case FieldAny:
		return v.matchID(d.ID) || v.matchText(d.Key) || v.matchText(d.LimitKey) || v.matchWords(d)
	case FieldID:
		return v.matchID(d.ID)
	case FieldKey:
		return v.matchText(d.Key) || v.matchText(d.LimitKey)
	case FieldLimitKey:
		return v.matchText(d.LimitKey)
	case FieldQueue:
		return v.matchText(d.Queue)
	case FieldFunction:
		return v.matchText(d.Function)
	case FieldState:
		return v.Text == d.State.String()
	case FieldTag:
		for _, tag := range d.Tags {
			if v.matchText(tag) {
				return true
			}
		}
		return false
	case FieldMeta:
		return v.matchLabel(d.Meta, t.Name)
	case FieldParams:
		return v.matchLabel(d.Params, t.Name)
	case FieldLabel:
		return v.matchLabel(d.Meta, t.Name) || v.matchLabel(d.Params, t.Name)
	case FieldError:
		folded := Value{Text: Fold(v.Text), Prefix: v.Prefix}
		return d.Fault != nil && (folded.matchText(Fold(d.Fault.Type)) || folded.matchText(Fold(d.Fault.Code)))
	case FieldText:
		return v.matchWords(d)
	case FieldNode:
		return v.matchText(d.Node)
	case FieldWorker:
		return v.matchText(d.Worker)
	}
	return t.matchRange(d, v)
}

func (t *Term) matchRange(d *subject, v Value) bool {
	switch t.Field {
	case FieldPriority:
		return v.contains(int64(d.Priority))
	case FieldAttempts:
		return v.contains(int64(d.Attempts))
	case FieldDispatches:
		return v.contains(int64(d.Dispatches))
	case FieldCreated:
		return v.matchTime(d.Created)
	case FieldStarted:
		return v.matchTime(d.Started)
	case FieldEnded:
		return v.matchTime(d.Ended)
	case FieldSince:
		return v.matchTime(d.Created) || v.matchTime(d.Started) || v.matchTime(d.Ended)
	case FieldTook:
		took, ok := Took(d.Document)
		return ok && v.contains(took)
	}
	return false
}

// Took returns how long the job's last attempt took in nanoseconds, and whether it started and
// ended.
func Took(d *job.Document) (int64, bool) {
	if d.Started.IsZero() || d.Ended.IsZero() {
		return 0, false
	}
	return max(0, d.Ended.UnixNano()-d.Started.UnixNano()), true
}

func (v Value) contains(n int64) bool { return v.From <= n && n < v.To }

func (v Value) matchTime(t time.Time) bool { return !t.IsZero() && v.contains(t.UnixNano()) }

// matchText reports whether v matches a text. The empty text is a missing value and matches nothing.
func (v Value) matchText(text string) bool {
	if v.Prefix {
		return text != "" && strings.HasPrefix(text, v.Text)
	}
	return text != "" && text == v.Text
}

func (v Value) matchID(id job.ID) bool {
	return Value{Text: Fold(v.Text), Prefix: v.Prefix}.matchText(id.String())
}

func (v Value) matchLabel(labels []job.Label, name string) bool {
	for _, l := range labels {
		if l.Name == name && v.matchText(l.Value) {
			return true
		}
	}
	return false
}

// matchWords reports whether the error's message has all words of v, the last one of which may be
// a prefix.
func (v Value) matchWords(d *subject) bool {
	wanted := Words(v.Text)
	if len(wanted) == 0 {
		return v.Text == "" && v.Prefix && len(d.text()) > 0
	}
	for i, w := range wanted {
		part := Value{Text: w, Prefix: v.Prefix && i == len(wanted)-1}
		found := false
		for _, word := range d.text() {
			if found = part.matchText(word); found {
				break
			}
		}
		if !found {
			return false
		}
	}
	return true
}
