package query

// Relax returns a condition that every document matches which matches x, whatever the values of
// some fields are; nil if all do. x may be nil.
func Relax(x Expr, unknown func(Field) bool) Expr {
	relaxed, _ := relax(x, unknown, true)
	return relaxed
}

// UsesLabels reports whether the condition depends on keys, tags, metadata or params.
func (q *Query) UsesLabels() (uses bool) {
	Relax(q.Where, func(f Field) bool {
		switch f {
		case FieldAny, FieldKey, FieldTag, FieldMeta, FieldParams, FieldLabel:
			uses = true
		}
		return false
	})
	return uses
}

// relax returns the strongest condition that x implies, or with implied unset the weakest one that
// implies x, without unknown fields. If it is constant, the condition is nil and matches all documents,
// or with implied unset none.
func relax(x Expr, unknown func(Field) bool, implied bool) (relaxed Expr, constant bool) {
	switch x := x.(type) {
	case And:
		return relaxAll(x, unknown, implied, implied, func(all []Expr) Expr { return And(all) })
	case Or:
		return relaxAll(x, unknown, implied, !implied, func(all []Expr) Expr { return Or(all) })
	case Not:
		inner, constant := relax(x.Expr, unknown, !implied)
		if constant {
			return nil, true
		}
		if not, ok := inner.(Not); ok {
			return not.Expr, false
		}
		return Not{inner}, false
	case *Term:
		if unknown(x.Field) {
			return nil, true
		}
		return x, false
	}
	return nil, true
}

// relaxAll relaxes each condition. Those that are constant are left out if skip is set, else the
// result is constant, too.
func relaxAll(list []Expr, unknown func(Field) bool, implied, skip bool, join func([]Expr) Expr) (Expr, bool) {
	var kept []Expr
	for _, y := range list {
		relaxed, constant := relax(y, unknown, implied)
		switch {
		case constant && !skip:
			return nil, true
		case !constant:
			kept = append(kept, relaxed)
		}
	}
	switch len(kept) {
	case 0:
		return nil, true
	case 1:
		return kept[0], false
	}
	return join(kept), false
}
