package ledger

import (
	"hash/maphash"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// idRing holds the ids of forgotten jobs in the order in which the jobs were
// forgotten, so that a late copy of a record does not create a second job.
type idRing struct {
	slabs []idSlab
	size  int      // number of ids
	first uint32   // number of slabs[0]; slabs are numbered as they are created
	index *idIndex // nil in a copy
}

// idSlab is a run of ids that were added one after the other. Slabs only grow at
// the end, so copies share them.
type idSlab struct {
	from, at int64 // when its first and its last id were added, in Unix nanoseconds
	ids      []job.ID
	removed  []uint16 // offsets of the ids of jobs that a caller removed, ascending
}

// Bounds of an idRing.
const (
	offsetBits = 12
	slabSize   = 1 << offsetBits // ids
	slabBits   = 15
	maxSlabs   = 1 << slabBits // a ring of more ids, 130 million, loses the oldest

	// Few ids are forgotten in time, too: a slab takes ids for at most slabSpan,
	// unless there are maxShortSlabs already.
	slabSpan      = int64(30 * time.Second)
	maxShortSlabs = 1024
)

func newIDRing() *idRing { return &idRing{index: &idIndex{seed: maphash.MakeSeed()}} }

func (g *idRing) copy() *idRing { return &idRing{slabs: slices.Clone(g.slabs), size: g.size} }

// add adds an id at the time now, in Unix nanoseconds. The ring must not have it. removed
// is whether a caller has removed the job.
func (g *idRing) add(id job.ID, now int64, removed bool) {
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
	g.addToIndex(last)
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
	g.slabs[0] = idSlab{} // releases the ids
	g.slabs = g.slabs[1:]
	g.first++
}

// idIndex finds the ids of a ring. It is a hash table with open addressing and
// linear probing, in many shards, so that it grows in small steps. A slot is 0 if
// it is free. Otherwise it consists of a tag, which is a few bits of the id's hash
// and not 0, the number of a slab, and an offset in the slab. Slots of ids that the
// ring has removed are recognized by the slab's number and used for other ids.
//
// The hash has a random seed, so that producers cannot choose ids that collide.
// What the index finds does not depend on the seed.
type idIndex struct {
	seed   maphash.Seed
	shards [1 << shardBits]idShard
}

type idShard struct {
	slots []uint32
	used  int // number of slots that are not 0
}

const (
	shardBits = 10
	tagShift  = slabBits + offsetBits
	maxTag    = 1<<(32-tagShift) - 1
)

// idHash is the hash of an id.
type idHash uint64

func (x *idIndex) hash(id *job.ID) idHash { return idHash(maphash.Bytes(x.seed, id[:])) }

func (x *idIndex) shard(h idHash) *idShard { return &x.shards[h%(1<<shardBits)] }

// tag returns the tag of slots for an id with the hash.
func (h idHash) tag() uint32 { return uint32(h>>shardBits)%maxTag + 1 }

// first returns the first of n slots to examine for an id with the hash.
func (h idHash) first(n int) int { return int(uint64(h>>32) * uint64(n) >> 32) }

// next returns the slot to examine after slot i.
func (s *idShard) next(i int) int {
	if i++; i < len(s.slots) {
		return i
	}
	return 0
}

// has reports whether the ring has an id. It must not be called on a copy.
func (g *idRing) has(id job.ID) bool {
	_, ok := g.find(&id)
	return ok
}

// wasRemoved reports whether the ring has the id of a job that a caller has removed. It
// must not be called on a copy.
func (g *idRing) wasRemoved(id job.ID) bool {
	slot, ok := g.find(&id)
	if !ok {
		return false
	}
	slab, offset := g.place(slot)
	_, removed := slices.BinarySearch(g.slabs[slab].removed, uint16(offset))
	return removed
}

// find returns the slot of an id.
func (g *idRing) find(id *job.ID) (slot uint32, ok bool) {
	h := g.index.hash(id)
	shard := g.index.shard(h)
	if shard.used == 0 {
		return 0, false
	}
	for i := h.first(len(shard.slots)); shard.slots[i] != 0; i = shard.next(i) {
		if slot := shard.slots[i]; slot>>tagShift == h.tag() {
			if stored := g.at(slot); stored != nil && *stored == *id {
				return slot, true
			}
		}
	}
	return 0, false
}

// place returns the slab, by its index, and the offset that a slot refers to.
func (g *idRing) place(slot uint32) (slab, offset int) {
	return int((slot>>offsetBits - g.first) % maxSlabs), int(slot % slabSize)
}

// at returns the id that a slot refers to, or nil if the ring has removed it.
func (g *idRing) at(slot uint32) *job.ID {
	slab, offset := g.place(slot)
	if slab < len(g.slabs) && offset < len(g.slabs[slab].ids) {
		return &g.slabs[slab].ids[offset]
	}
	return nil
}

// addToIndex adds the last id of a slab to the index.
func (g *idRing) addToIndex(slab int) {
	ids := g.slabs[slab].ids
	h := g.index.hash(&ids[len(ids)-1])
	shard := g.index.shard(h)
	full := shard.used*20 >= len(shard.slots)*17
	sparse := len(shard.slots) > 64 && len(shard.slots)/8 > g.size>>shardBits
	if full || sparse {
		g.rebuild(shard)
	}
	number := (g.first + uint32(slab)) % maxSlabs
	g.put(shard, h, number<<offsetBits|uint32(len(ids)-1))
}

// put stores a slab's number and an offset in a slot for an id with the hash.
func (g *idRing) put(shard *idShard, h idHash, place uint32) {
	i := h.first(len(shard.slots))
	for shard.slots[i] != 0 && g.at(shard.slots[i]) != nil {
		i = shard.next(i)
	}
	if shard.slots[i] == 0 {
		shard.used++
	}
	shard.slots[i] = h.tag()<<tagShift | place
}

// rebuild drops the slots of removed ids from a shard and gives it a new size.
func (g *idRing) rebuild(shard *idShard) {
	removed := func(slot uint32) bool { return slot == 0 || g.at(slot) == nil }
	kept := slices.DeleteFunc(shard.slots, removed)
	*shard = idShard{slots: make([]uint32, max(8, len(kept)*7/4))}
	for _, slot := range kept {
		g.put(shard, g.index.hash(g.at(slot)), slot%(1<<tagShift))
	}
}

// forgottenIDs encodes or decodes the ids of forgotten jobs. Slabs that no ring can
// have fail with errCorrupt.
func (c *codec) forgottenIDs(ring *idRing) {
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
		if !c.decoding() {
			for i := range slab.ids {
				c.raw(slab.ids[i][:])
			}
			return
		}
		for range length {
			slab.ids = append(slab.ids, job.ID{})
			c.raw(slab.ids[len(slab.ids)-1][:])
			ring.size++
			ring.addToIndex(len(ring.slabs) - 1)
		}
	})
}
