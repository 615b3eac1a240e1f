// Package catalogue holds the drills, by family: each says what it breaks and
// what is promised, and breaks it.
package catalogue

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"yardmaster/drill"
)

// All are the drills, by number.
func All() []drill.Drill {
	all := slices.Concat(
		nodes,
		rolling,
		pauses,
		network,
		disks,
		runners,
		workers,
		publishers,
		clients,
		damage,
		full,
		members,
		backups,
	)
	slices.SortStableFunc(all, func(a, b drill.Drill) int { return cmp.Compare(a.Number, b.Number) })
	return all
}

// Pick gives the drills that are named, by name or number, in the catalogue's
// order; none named is all of them. Those in skip are left out. A name that
// there is not is an error.
func Pick(names, skip []string) ([]drill.Drill, error) {
	all := All()
	for _, name := range slices.Concat(names, skip) {
		if !slices.ContainsFunc(all, func(d drill.Drill) bool { return is(d, name) }) {
			return nil, fmt.Errorf("there is no drill %q", name)
		}
	}
	return slices.DeleteFunc(all, func(d drill.Drill) bool {
		wanted := len(names) == 0 || slices.ContainsFunc(names, func(n string) bool { return is(d, n) })
		return !wanted || slices.ContainsFunc(skip, func(n string) bool { return is(d, n) })
	}), nil
}

func is(d drill.Drill, name string) bool {
	return d.Name == name || strings.TrimLeft(name, "0") == fmt.Sprint(d.Number)
}
