package node

import (
	"slices"
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	three, five := []string{"n1", "n2", "n3"}, []string{"n1", "n2", "n3", "n4", "n5"}
	for name, c := range map[string]struct {
		hashes          map[string]string
		members         []string
		diverged, split []string
		says            string
	}{
		"all alike":                      {map[string]string{"n1": "a", "n2": "a", "n3": "a"}, three, nil, nil, ""},
		"one is not heard":               {map[string]string{"n1": "a", "n2": "a"}, three, nil, nil, ""},
		"one has diverged":               {map[string]string{"n1": "a", "n2": "b", "n3": "a"}, three, []string{"n2"}, nil, "run 'yardmaster cluster replace n2'"},
		"two differ, the third is gone":  {map[string]string{"n1": "a", "n3": "b"}, three, nil, []string{"n1", "n3"}, "the ledgers of n1, n3 differ at entry 9"},
		"three have three":               {map[string]string{"n1": "a", "n2": "b", "n3": "c"}, three, nil, three, "no majority says which is right"},
		"two of five":                    {map[string]string{"n1": "a", "n2": "b", "n3": "a", "n4": "b", "n5": "a"}, five, []string{"n2", "n4"}, nil, "member n4's ledger is not the yard's at entry 9"},
		"a majority of those heard only": {map[string]string{"n1": "a", "n2": "a", "n3": "b"}, five, nil, []string{"n1", "n2", "n3"}, "no majority"},
		"one alone":                      {map[string]string{"n1": "a"}, []string{"n1"}, nil, nil, ""},
	} {
		v := compare(c.hashes, c.members)
		text := strings.Join(v.texts(9), "\n")
		if !slices.Equal(v.diverged, c.diverged) || !slices.Equal(v.split, c.split) || !strings.Contains(text, c.says) || (text == "") != (c.says == "") {
			t.Errorf("%s: %+v, %q", name, v, text)
		}
	}
}
