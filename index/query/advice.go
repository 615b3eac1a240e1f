package query

import (
	"fmt"
	"slices"
	"strings"
)

// maxShownLabels is how many labels an advice lists.
const maxShownLabels = 16

// UnknownLabels returns an advice for each label in the query that no job has: it finds nothing, and may be a
// misspelling. Has reports whether a job has any value of the label that a term names; known returns the
// labels that are proposed.
func (q *Query) UnknownLabels(has func(*Term) bool, known func() []string) (advice []string) {
	var names []string
	walk(q.Where, func(t *Term) {
		if t.Field != FieldLabel && t.Field != FieldMeta || slices.Contains(names, t.Name) || has(t) {
			return
		}
		names = append(names, t.Name)
		advice = append(advice, unknownLabel(t, known()))
	})
	return advice
}

func unknownLabel(t *Term, known []string) string {
	text := fmt.Sprintf("%s: no job has this label", &Query{Where: t})
	if like := similar(t.Name, known); like != "" {
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
