package scrub

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind tells findings apart.
type Kind string

// The kinds.
const (
	Lacks   Kind = "lacks"   // this copy has nothing readable, another has
	Differs Kind = "differs" // this copy has another message than two others
	Split   Kind = "split"   // two copies differ, and no third was heard that is like one of them
	Nowhere Kind = "nowhere" // no copy that was heard has it
)

// Finding is what is wrong with a copy.
type Finding struct {
	Kind  Kind     `json:"kind"`
	Count int      `json:"count"` // messages
	Which string   `json:"which"` // their sequences, the first ones if there are many
	With  []string `json:"with"`  // members that were heard about them
}

// Result is what came of reading one copy.
type Result struct {
	Stream   string    `json:"stream"`
	At       time.Time `json:"at"` // when that ended
	First    uint64    `json:"first"`
	Last     uint64    `json:"last"`
	Messages uint64    `json:"messages"`        // that were read
	Damaged  int       `json:"damaged"`         // places that could not be read
	With     []string  `json:"with"`            // members whose copies it was compared with
	Error    string    `json:"error,omitempty"` // why it could not be read
	Findings []Finding `json:"findings,omitempty"`
}

// Sound tells that the copy was compared and nothing is wrong.
func (r *Result) Sound() bool { return r.Error == "" && len(r.Findings) == 0 && len(r.With) > 0 }

// Report is what a node last found in its copies.
type Report struct {
	Node    string    `json:"node"`
	Ended   time.Time `json:"ended"` // the last round over all copies; zero: none has
	Took    int64     `json:"took_ms"`
	Results []Result  `json:"results"`
}

// shownRanges is how many runs of sequences a text names.
const shownRanges = 8

// ranges names sequences, in order.
func ranges(seqs []uint64) string {
	slices.Sort(seqs)
	var runs []string
	for i := 0; i < len(seqs); {
		end := i
		for end+1 < len(seqs) && seqs[end+1] == seqs[end]+1 {
			end++
		}
		if len(runs) == shownRanges {
			return strings.Join(runs, ", ") + ", …"
		}
		if end == i {
			runs = append(runs, fmt.Sprint(seqs[i]))
		} else {
			runs = append(runs, fmt.Sprintf("%d–%d", seqs[i], seqs[end]))
		}
		i = end + 1
	}
	return strings.Join(runs, ", ")
}
