package ledger

import "yardmaster/job"

// idRing remembers the ids of forgotten jobs in the order they went, so that a
// late copy of a record makes no second job.
type idRing struct {
	known map[job.ID]struct{} // nil in a copy
	slabs []idSlab
	size  int
}

// idSlab is a run of ids that went at about the same time. Slabs only grow at
// the end, so copies share them.
type idSlab struct {
	at  int64 // when its last id went
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

// trim lets whole slabs go that went before a time, or that are too many.
func (g *idRing) trim(before int64, most int) {
	for len(g.slabs) > 1 && (g.slabs[0].at < before || g.size > most) {
		for _, id := range g.slabs[0].ids {
			delete(g.known, id)
		}
		g.size -= len(g.slabs[0].ids)
		g.slabs = g.slabs[1:]
	}
}

// short tells how old the oldest id is that is still known, if that is less
// than a time because there were too many.
func (g *idRing) short(now, least int64, most int) (age int64, ok bool) {
	if g.size <= most-slabSize {
		return 0, false
	}
	age = now - g.slabs[0].at
	return age, age < least
}

func (g *idRing) copy() *idRing {
	return &idRing{slabs: append([]idSlab(nil), g.slabs...), size: g.size}
}
