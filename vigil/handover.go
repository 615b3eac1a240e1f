package vigil

import (
	"cmp"
	"slices"
	"time"
)

// How soon and how often an authority that is unfit hands over.
const (
	unfitFor    = 5 * time.Second // before it counts
	cutFor      = 2 * time.Second // the same, without routes: a route is gone only after 6 s of silence
	restLeast   = time.Minute     // between two times
	restMost    = 15 * time.Minute
	closeEnough = 500 * time.Millisecond // since the heir heard the leader
	heirLag     = 128                    // entries that the heir may lack
)

// handover decides when a node that holds the authority is to give it away, and
// to whom. Whoever takes it was fit by its own word, so that it does not come
// back at once; if it does come back, the rest between two times grows.
type handover struct {
	since time.Time     // when the node was first found unfit; zero: it is fit
	last  time.Time     // when it handed over
	rest  time.Duration // until it does so again
}

// heir names who is to have the authority, "" for nobody, from what the node
// says of itself and has just heard of the others.
func (h *handover) heir(now time.Time, leads bool, mine *Word, others []Word) string {
	if mine.Fit() {
		h.since = time.Time{}
		if !h.last.IsZero() && now.Sub(h.last) > 2*h.rest {
			h.rest = 0 // it has been well for long
		}
		return ""
	}
	if h.since.IsZero() {
		h.since = now
	}
	wait := unfitFor
	if mine.ails(Routes) {
		wait = cutFor
	}
	if !leads || now.Sub(h.since) < wait || !h.last.IsZero() && now.Sub(h.last) < h.rest {
		return ""
	}
	able := slices.DeleteFunc(slices.Clone(others), func(w Word) bool { return !w.ableAfter(mine) })
	if len(able) == 0 {
		return ""
	}
	best := slices.MinFunc(able, func(a, b Word) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(b.Last, a.Last), cmp.Compare(a.Node, b.Node))
	})
	h.last, h.rest = now, min(max(restLeast, 2*h.rest), restMost)
	return best.Node
}

// ableAfter tells that a member is fit and follows the one who hands over: raft
// takes no proposals while a transfer waits.
func (w *Word) ableAfter(leader *Word) bool {
	return w.Fit() && w.Leader == leader.Node && w.Contact >= 0 && w.Contact <= closeEnough && w.Last+heirLag >= leader.Last
}
