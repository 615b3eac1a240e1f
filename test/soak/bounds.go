package soak

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/ledger"
)

// requiredPasses is how often every bound must be passed in a run of [FullLength].
const requiredPasses = 5

// Passes is how often a bound was passed: how much was written, divided by the bound.
type Passes struct {
	What    string  `json:"what"`
	Bound   string  `json:"bound"`
	Written string  `json:"written"`
	Times   float64 `json:"times"`
	Exempt  string  `json:"exempt,omitempty"` // why it may be passed less often
}

// boundCounter measures how much was written through each bound.
type boundCounter struct {
	last    map[string]Stream
	written map[string]float64 // bytes, by stream
	taken   map[string]map[string]bool
}

func newBoundCounter() *boundCounter {
	return &boundCounter{last: make(map[string]Stream), written: make(map[string]float64), taken: make(map[string]map[string]bool)}
}

// observe adds what was written to each stream since the last call: the number of new
// messages, with the average size of those that the stream holds now.
func (b *boundCounter) observe(streams map[string]Stream) {
	for name, s := range streams {
		if s.Messages > 0 && s.Last > b.last[name].Last {
			b.written[name] += float64(s.Last-b.last[name].Last) * float64(s.Bytes) / float64(s.Messages)
		}
		if s.Last >= b.last[name].Last { // else it is of a replica that lags
			b.last[name] = s
		}
	}
}

// snapshots records the names of a node's Raft snapshots.
func (b *boundCounter) snapshots(node string, names []string) {
	if b.taken[node] == nil {
		b.taken[node] = make(map[string]bool)
	}
	for _, name := range names {
		b.taken[node][name] = true
	}
}

// passes returns how often each bound was passed in a load of a length, after which this
// many jobs had finished.
func (b *boundCounter) passes(length time.Duration, finished int) (all []Passes) {
	for _, name := range slices.Sorted(maps.Keys(b.last)) {
		if strings.HasPrefix(name, "YARD_") {
			all = append(all, b.streamPasses(name, length))
		}
	}
	for _, node := range slices.Sorted(maps.Keys(b.taken)) {
		n := len(b.taken[node])
		all = append(all, Passes{What: "Raft log of " + node, Bound: "snapshot", Written: fmt.Sprintf("%d snapshots", n), Times: float64(n)})
	}
	records := Passes{What: "finished jobs", Bound: fmt.Sprint(keptFinished), Written: fmt.Sprint(finished), Times: float64(finished) / keptFinished}
	ids := Passes{What: "ids of finished jobs", Bound: ledger.DedupeHorizon.String(), Written: length.Round(time.Second).String(), Times: length.Seconds() / ledger.DedupeHorizon.Seconds()}
	if length < requiredPasses*ledger.DedupeHorizon {
		ids.Exempt = fmt.Sprintf("fixed at %s", ledger.DedupeHorizon)
	}
	return append(all, records, ids)
}

// streamPasses returns how often the bound of a stream was passed of which most was
// written.
func (b *boundCounter) streamPasses(name string, length time.Duration) Passes {
	s := b.last[name]
	var candidates []Passes
	if s.MaxBytes > 0 {
		candidates = append(candidates, Passes{Bound: sizeText(float64(s.MaxBytes)), Written: sizeText(b.written[name]), Times: b.written[name] / float64(s.MaxBytes)})
	}
	if s.MaxMsgs > 0 {
		candidates = append(candidates, Passes{Bound: fmt.Sprintf("%d messages", s.MaxMsgs), Written: fmt.Sprint(s.Last), Times: float64(s.Last) / float64(s.MaxMsgs)})
	}
	if s.MaxAge > 0 {
		candidates = append(candidates, Passes{Bound: s.MaxAge.String(), Written: length.Round(time.Second).String(), Times: length.Seconds() / s.MaxAge.Seconds()})
	}
	if len(candidates) == 0 {
		return Passes{What: name, Bound: "none", Written: sizeText(b.written[name]), Exempt: "the stream has no bound"}
	}
	most := slices.MaxFunc(candidates, func(a, b Passes) int { return cmp.Compare(a.Times, b.Times) })
	most.What = name
	return most
}
