package ledger

import (
	"hash/maphash"
	"slices"

	"github.com/yardmaster-dev/yardmaster/job"
)

// idIndex finds ids that a store has at places. It is a hash table with open addressing and
// linear probing, in many shards, so that it grows in small steps. A slot is 0 if it is free.
// Otherwise it consists of a tag, which is a few bits of the id's hash and not 0, and a place.
// Slots of ids that the store has no more are used for other ids.
//
// The hash has a random seed, so that producers cannot choose ids that collide.
// What the index finds does not depend on the seed.
type idIndex struct {
	seed   maphash.Seed
	shards [1 << shardBits]idShard
}

// idStore has the ids of an index. A place has placeBits bits.
type idStore interface {
	idAt(place uint32) *job.ID // nil: the store has it no more
	ids() int                  // number of ids
}

type idShard struct {
	slots []uint32
	used  int // number of slots that are not 0
}

const (
	placeBits = 27
	shardBits = 10
	maxTag    = 1<<(32-placeBits) - 1

	removedSlot = 1 // has no tag: the id at its place was removed
)

func newIDIndex() *idIndex { return &idIndex{seed: maphash.MakeSeed()} }

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

// find returns the place of an id in its store.
func (x *idIndex) find(store idStore, id *job.ID) (place uint32, ok bool) {
	slot := x.slot(store, id)
	if slot == nil {
		return 0, false
	}
	return *slot % (1 << placeBits), true
}

// slot returns the slot of an id, or nil if the store does not have it.
func (x *idIndex) slot(store idStore, id *job.ID) *uint32 {
	h := x.hash(id)
	shard := x.shard(h)
	if shard.used == 0 {
		return nil
	}
	for i := h.first(len(shard.slots)); shard.slots[i] != 0; i = shard.next(i) {
		if slot := &shard.slots[i]; *slot>>placeBits == h.tag() {
			if stored := store.idAt(*slot % (1 << placeBits)); stored != nil && *stored == *id {
				return slot
			}
		}
	}
	return nil
}

// add adds an id, which the index does not have and the store has at a place.
func (x *idIndex) add(store idStore, id *job.ID, place uint32) {
	h := x.hash(id)
	shard := x.shard(h)
	full := shard.used*20 >= len(shard.slots)*17
	sparse := len(shard.slots) > 64 && len(shard.slots)/8 > store.ids()>>shardBits
	if full || sparse {
		x.rebuild(store, shard)
	}
	shard.put(store, h, place)
}

// remove removes an id that the store still has.
func (x *idIndex) remove(store idStore, id *job.ID) { *x.slot(store, id) = removedSlot }

// put stores a place in a slot for an id with the hash.
func (s *idShard) put(store idStore, h idHash, place uint32) {
	i := h.first(len(s.slots))
	for s.slots[i] != 0 && !unused(store, s.slots[i]) {
		i = s.next(i)
	}
	if s.slots[i] == 0 {
		s.used++
	}
	s.slots[i] = h.tag()<<placeBits | place
}

// unused reports whether the store has no id any more for a slot.
func unused(store idStore, slot uint32) bool {
	return slot>>placeBits == 0 || store.idAt(slot%(1<<placeBits)) == nil
}

// rebuild drops the slots that are not used from a shard and gives it a new size.
func (x *idIndex) rebuild(store idStore, shard *idShard) {
	kept := slices.DeleteFunc(shard.slots, func(slot uint32) bool { return unused(store, slot) })
	*shard = idShard{slots: make([]uint32, max(8, len(kept)*7/4))}
	for _, slot := range kept {
		place := slot % (1 << placeBits)
		shard.put(store, x.hash(store.idAt(place)), place)
	}
}
