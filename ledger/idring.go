package ledger

import (
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// idRing holds the ids of forgotten jobs in the order in which the jobs were
// forgotten, so that a late copy of a record does not create a second job. For the same
// reason it holds aliases, the ids of records that became no jobs.
type idRing struct {
	slabs   []idSlab
	size    int    // number of ids
	aliases int    // number of those that are aliases
	first   uint32 // number of slabs[0]; slabs are numbered as they are created
}

// idSlab is a run of ids that were added one after the other. Slabs only grow at
// the end, so copies share them.
type idSlab struct {
	from, at int64 // when its first and its last id were added, in Unix nanoseconds
	ids      []job.ID
	removed  []uint16 // offsets of the ids of jobs that a caller removed, ascending
	aliases  []placedAlias
}

// Bounds of an idRing.
const (
	offsetBits = 12
	slabSize   = 1 << offsetBits // ids
	slabBits   = 27 - offsetBits
	maxSlabs   = 1 << slabBits // a ring of more ids, 130 million, loses the oldest

	// Few ids are forgotten in time, too: a slab takes ids for at most slabSpan,
	// unless there are maxShortSlabs already.
	slabSpan      = int64(30 * time.Second)
	maxShortSlabs = 1024
)

// forgottenPlace is set in the places that ids of a ring have in an index, and not in those that
// are numbers of records.
const forgottenPlace = maxSlabs * slabSize

func (g *idRing) copy() *idRing {
	return &idRing{slabs: slices.Clone(g.slabs), size: g.size, aliases: g.aliases}
}

// add adds an id at the time now, in Unix nanoseconds, and returns its place in an index. The
// ring must not have it. removed is whether a caller has removed the job.
func (g *idRing) add(id job.ID, now int64, removed bool) (place uint32) {
	last := len(g.slabs) - 1
	if last < 0 || len(g.slabs[last].ids) == slabSize || now-g.slabs[last].from >= slabSpan && last < maxShortSlabs {
		if len(g.slabs) == maxSlabs {
			g.removeOldest()
		}
		g.slabs = append(g.slabs, idSlab{from: now})
		last = len(g.slabs) - 1
	}
	slab := &g.slabs[last]
	if len(slab.ids) == cap(slab.ids) { // append would reserve more than a slab takes
		grown := make([]job.ID, len(slab.ids), min(max(16, 2*cap(slab.ids)), slabSize))
		copy(grown, slab.ids)
		slab.ids = grown
	}
	if removed {
		slab.removed = append(slab.removed, uint16(len(slab.ids)))
	}
	slab.ids, slab.at = append(slab.ids, id), now
	g.size++
	return g.lastPlace()
}

// addAlias is add for the id of a record that became no job.
func (g *idRing) addAlias(id job.ID, now int64, alias Alias) (place uint32) {
	place = g.add(id, now, false)
	slab, offset := g.split(place)
	g.slabs[slab].aliases = append(g.slabs[slab].aliases, placedAlias{uint16(offset), alias})
	g.aliases++
	return place
}

// trim removes the slabs whose ids were all added before the given time, in Unix
// nanoseconds.
func (g *idRing) trim(before int64) {
	for len(g.slabs) > 0 && g.slabs[0].at < before {
		g.removeOldest()
	}
}

func (g *idRing) removeOldest() {
	g.size -= len(g.slabs[0].ids)
	g.aliases -= len(g.slabs[0].aliases)
	g.slabs[0] = idSlab{} // releases the ids
	g.slabs = g.slabs[1:]
	g.first++
}

// wasRemoved reports whether the id at a place is that of a job that a caller has removed.
func (g *idRing) wasRemoved(place uint32) bool {
	slab, offset := g.split(place)
	_, removed := slices.BinarySearch(g.slabs[slab].removed, uint16(offset))
	return removed
}

// split returns the slab, by its index, and the offset of which a place consists.
func (g *idRing) split(place uint32) (slab, offset int) {
	return int((place>>offsetBits - g.first) % maxSlabs), int(place % slabSize)
}

// idAt returns the id at a place, nil if the ring has it no more.
func (g *idRing) idAt(place uint32) *job.ID {
	slab, offset := g.split(place)
	if slab < len(g.slabs) && offset < len(g.slabs[slab].ids) {
		return &g.slabs[slab].ids[offset]
	}
	return nil
}

// lastPlace returns the place of the last id.
func (g *idRing) lastPlace() uint32 {
	last := len(g.slabs) - 1
	number := (g.first + uint32(last)) % maxSlabs
	return forgottenPlace | number<<offsetBits | uint32(len(g.slabs[last].ids)-1)
}

// forgottenIDs encodes or decodes the ids of forgotten jobs, and aliases. Slabs that no ring can
// have fail with errCorrupt.
func (c *codec) forgottenIDs(j *jobs, format uint64) {
	ring := j.forgotten
	list(c, &ring.slabs, func(slab *idSlab) {
		length := uint64(len(slab.ids))
		c.fields(&slab.from, &slab.at, &length)
		if length == 0 || length > slabSize || len(ring.slabs) > maxSlabs {
			c.fail(errCorrupt)
			return
		}
		list(c, &slab.removed, func(offset *uint16) {
			v := uint64(*offset)
			c.uint(&v)
			if !c.decoding() {
				return
			}
			*offset = uint16(v)
			if before := len(slab.removed) - 2; v >= length || before >= 0 && slab.removed[before] >= *offset {
				c.fail(errCorrupt)
			}
		})
		if format >= level8Format {
			c.aliases(slab, length)
			if c.decoding() {
				ring.aliases += len(slab.aliases)
			}
		}
		if !c.decoding() {
			for i := range slab.ids {
				c.raw(slab.ids[i][:])
			}
			return
		}
		for range length {
			slab.ids = append(slab.ids, job.ID{})
			id := &slab.ids[len(slab.ids)-1]
			c.raw(id[:])
			if _, known := j.byID.find(j, id); known {
				c.fail(errCorrupt)
				return
			}
			ring.size++
			j.byID.add(j, id, ring.lastPlace())
		}
	})
}
