// Package catalogue contains all drills, grouped by the kind of fault.
package catalogue

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/yardmaster-dev/yardmaster/test/drill"
)

// All returns all drills, ordered by number.
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
		bounds,
		members,
		backups,
		limits,
		history,
	)
	slices.SortStableFunc(all, func(a, b drill.Drill) int { return cmp.Compare(a.Number, b.Number) })
	return all
}

// Pick returns the drills with these names or numbers, or all if names is empty,
// ordered by number and without those in skip. An unknown name is an error.
func Pick(names, skip []string) ([]drill.Drill, error) {
	all := All()
	for _, name := range slices.Concat(names, skip) {
		if !slices.ContainsFunc(all, func(d drill.Drill) bool { return matches(d, name) }) {
			return nil, fmt.Errorf("there is no drill %q", name)
		}
	}
	return slices.DeleteFunc(all, func(d drill.Drill) bool {
		wanted := len(names) == 0 || slices.ContainsFunc(names, func(n string) bool { return matches(d, n) })
		return !wanted || slices.ContainsFunc(skip, func(n string) bool { return matches(d, n) })
	}), nil
}

// matches reports whether name is the name or number of the drill.
func matches(d drill.Drill, name string) bool {
	return d.Name == name || strings.TrimLeft(name, "0") == fmt.Sprint(d.Number)
}
