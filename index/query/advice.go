package query

import (
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/internal/similar"
	"github.com/yardmaster-dev/yardmaster/job"
)

// maxShownLabels is how many labels an advice lists.
const maxShownLabels = 16

// UnknownLabels returns an advice for each label in the query that no job has: it finds nothing, and may be a
// misspelling. Has reports whether a job has any value of the label that a term names, hasQueue whether a
// queue exists; known returns the labels that are proposed.
func (q *Query) UnknownLabels(has func(*Term) bool, hasQueue func(string) bool, known func() []string) (advice []string) {
	if q.namesKey() {
		return nil
	}
	var names []string
	walk(q.Where, func(t *Term) {
		if t.Field != FieldLabel && t.Field != FieldMeta || slices.Contains(names, t.Name) || has(t) {
			return
		}
		names = append(names, t.Name)
		if t.Field == FieldLabel && hasQueue(t.Name) {
			advice = append(advice, fmt.Sprintf("%s: no job has this label; beside other terms, a key of a queue is written %s", &Query{Where: t}, &Query{Where: keyOf(t)}))
			return
		}
		advice = append(advice, unknownLabel(t, known()))
	})
	return advice
}

// namesKey reports whether the query is a queue's name, a colon and a key: see [Options].
func (q *Query) namesKey() bool {
	or, _ := q.Where.(Or)
	if len(or) != 2 {
		return false
	}
	t, ok := or[0].(*Term)
	return ok && t.Field == FieldLabel && (&Query{Where: or[1]}).String() == (&Query{Where: keyOf(t)}).String()
}

// keyOf returns a condition of the jobs with a key, or an id, in a queue, of a term <queue>:<key>.
func keyOf(t *Term) And {
	field := FieldKey
	if _, err := job.ParseID(t.Values[0].Text); err == nil && len(t.Values) == 1 {
		field = FieldID
	}
	return And{&Term{Field: FieldQueue, Values: []Value{{Text: t.Name}}}, &Term{Field: field, Values: t.Values}}
}

func unknownLabel(t *Term, known []string) string {
	text := fmt.Sprintf("%s: no job has this label", &Query{Where: t})
	if like := similar.Name(t.Name, known); like != "" {
		return text + fmt.Sprintf("; did you mean %s?", quoteName(like))
	}
	if len(known) > 0 {
		text += ", jobs have " + strings.Join(known[:min(len(known), maxShownLabels)], ", ")
	}
	if len(known) > maxShownLabels {
		text += " and others"
	}
	return text + fmt.Sprintf("; the fields are %s, meta.NAME and params.PATH; quote a text that has a colon: \"a:b\"", strings.Join(fieldNames(), ", "))
}

// AnyValue returns a query for the jobs that have any value of the label that the term names.
func (t *Term) AnyValue() *Query {
	return &Query{Where: &Term{Field: t.Field, Name: t.Name, Values: []Value{{Prefix: true}}}}
}

// walk calls visit with the terms of a condition.
func walk(x Expr, visit func(*Term)) {
	switch x := x.(type) {
	case And:
		for _, part := range x {
			walk(part, visit)
		}
	case Or:
		for _, part := range x {
			walk(part, visit)
		}
	case Not:
		walk(x.Expr, visit)
	case *Term:
		visit(x)
	}
}
