package scrub

import (
	"maps"
	"slices"
)

// reading is what a disk holds of a run of sequences.
type reading struct {
	first, last uint64 // of the copy, as its server says
	sums        map[uint64]uint64
}

func readingOf(a *Answer) *reading {
	r := &reading{first: a.First, last: a.Last, sums: make(map[uint64]uint64, len(a.Messages))}
	for _, m := range a.Messages {
		r.sums[m.Seq] = m.Sum
	}
	return r
}

// judge holds this node's reading of the sequences from one to another against
// those of others, which are older: so what is missing here has not just not
// come yet.
func judge(own *reading, others map[string]*reading, from, to uint64, dense bool) map[Kind][]uint64 {
	wrong := map[Kind][]uint64{}
	until := own.last
	for _, o := range others {
		until = max(until, o.last)
	}
	for seq := max(from, own.first); seq <= min(to, until); seq++ {
		if kind := judgeOne(own, others, seq, dense); kind != "" {
			wrong[kind] = append(wrong[kind], seq)
		}
	}
	return wrong
}

func judgeOne(own *reading, others map[string]*reading, seq uint64, dense bool) Kind {
	mine, have := own.sums[seq]
	votes := map[uint64]int{}
	for _, o := range others {
		if sum, has := o.sums[seq]; has {
			votes[sum]++
		}
	}
	switch {
	case !have && len(votes) > 0:
		return Lacks
	case !have && dense && seq <= own.last && !purged(others, seq):
		return Nowhere
	case !have, len(votes) == 0, votes[mine] > 0:
		return ""
	}
	for _, n := range votes { // none is like mine
		if n > 1 {
			return Differs
		}
	}
	return Split
}

// purged tells that a copy's beginning lies behind a sequence: this one's may be
// about to.
func purged(others map[string]*reading, seq uint64) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(others)), func(o *reading) bool { return seq < o.first })
}
