package ledger

import "github.com/yardmaster-dev/yardmaster/job"

// idRing remembers the ids of forgotten jobs in the order in which they were
// removed, so that a late copy of a record does not create a second job.
type idRing struct {
	known map[job.ID]struct{} // nil in a copy
	slabs []idSlab
	size  int
}

// idSlab is a run of ids that were added at about the same time. Slabs only
// grow at the end, so copies share them.
type idSlab struct {
	at  int64 // when its last id was added, in Unix nanoseconds
	ids []job.ID
}

const slabSize = 1024

func newIDRing() *idRing { return &idRing{known: make(map[job.ID]struct{})} }

func (g *idRing) has(id job.ID) bool {
	_, ok := g.known[id]
	return ok
}

func (g *idRing) add(id job.ID, now int64) {
	g.known[id] = struct{}{}
	g.size++
	if n := len(g.slabs); n == 0 || len(g.slabs[n-1].ids) == slabSize {
		g.slabs = append(g.slabs, idSlab{ids: make([]job.ID, 0, slabSize)})
	}
	last := &g.slabs[len(g.slabs)-1]
	last.ids = append(last.ids, id)
	last.at = now
}

// trim removes whole slabs that are older than before, or while there are more
// than limit ids.
func (g *idRing) trim(before int64, limit int) {
	for len(g.slabs) > 1 && (g.slabs[0].at < before || g.size > limit) {
		for _, id := range g.slabs[0].ids {
			delete(g.known, id)
		}
		g.size -= len(g.slabs[0].ids)
		g.slabs = g.slabs[1:]
	}
}

// shortfall reports whether the ring, because of its limit, covers less than
// the required time. age is then the age of its oldest id.
func (g *idRing) shortfall(now, least int64, limit int) (age int64, ok bool) {
	if g.size <= limit-slabSize {
		return 0, false
	}
	age = now - g.slabs[0].at
	return age, age < least
}

func (g *idRing) copy() *idRing {
	return &idRing{slabs: append([]idSlab(nil), g.slabs...), size: g.size}
}
