package catalogue

import (
	"regexp"
	"testing"

	"github.com/yardmaster-dev/yardmaster/test/drill"
)

func TestAll(t *testing.T) {
	name := regexp.MustCompile(`^[a-z][a-z0-9-]{2,31}$`)
	seen := make(map[string]bool)
	last := 0
	for _, d := range All() {
		switch {
		case !name.MatchString(d.Name) || seen[d.Name]:
			t.Errorf("drill %d: the name %q is malformed or used twice", d.Number, d.Name)
		case d.Number < 1 || d.Number > 99 || d.Number < last:
			t.Errorf("%s has the number %d after %d", d.Name, d.Number, last)
		case d.Breaks == "" || d.Promises == "" || d.Run == nil:
			t.Errorf("%s is incomplete", d.Name)
		}
		seen[d.Name], last = true, d.Number
	}
}

func TestPick(t *testing.T) {
	names := func(drills []drill.Drill) (names []string) {
		for _, d := range drills {
			names = append(names, d.Name)
		}
		return names
	}
	all, err := Pick(nil, nil)
	if err != nil || len(all) != len(All()) {
		t.Errorf("all: %q, %v", names(all), err)
	}
	two, err := Pick([]string{"kill-authority", "01"}, nil)
	if got := names(two); err != nil || len(got) != 2 || got[0] != "kill-follower" || got[1] != "kill-authority" {
		t.Errorf("two: %q, %v", got, err)
	}
	rest, err := Pick(nil, []string{"1"})
	if err != nil || len(rest) != len(all)-1 {
		t.Errorf("all but one: %q, %v", names(rest), err)
	}
	if _, err := Pick([]string{"kill-time"}, nil); err == nil {
		t.Error("Pick accepted an unknown drill")
	}
}
