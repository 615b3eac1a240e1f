package ledger

import (
	"fmt"
	"hash/maphash"
	"slices"

	"github.com/yardmaster-dev/yardmaster/job"
)

// idIndex finds ids that a store has at places. It is a hash table with open addressing and
// linear probing, in many shards, so that it grows in small steps. A slot has a place and a
// part of the id's hash, so that the index moves slots without a look at their ids, and seldom
// looks at an id that is not the one to be found.
//
// The slots of a shard are in the order of the first slots to examine for their ids, as in Robin
// Hood hashing: a search for an id ends at a slot that is nearer to its first one than the id's
// slot would be.
//
// The hash has a random seed, so that producers cannot choose ids that collide.
// What the index finds does not depend on the seed.
type idIndex struct {
	seed   maphash.Seed
	shards [1 << shardBits]idShard
}

// idStore has the ids of an index. A place has placeBits bits. A store drops ids without telling
// the index.
type idStore interface {
	idAt(place uint32) *job.ID // nil: the store has it no more
	ids() int                  // number of ids
	has(place uint32) bool     // whether idAt returns an id
}

type idShard struct {
	slots []idSlot
	used  int // number of slots that are not free
}

// idSlot is 48 bits, the lowest first: a place and a hash that is not 0. It is 0 if it is free.
type idSlot [3]uint16

const (
	placeBits = 28
	shardBits = 10
	hashBits  = 48 - placeBits
)

func newIDIndex() *idIndex { return &idIndex{seed: maphash.MakeSeed()} }

// locate returns the shard of an id, and its slot for a place.
func (x *idIndex) locate(id *job.ID, place uint32) (*idShard, idSlot) {
	h := maphash.Bytes(x.seed, id[:])
	bits := (h>>shardBits%(1<<hashBits-1)+1)<<placeBits | uint64(place)
	return &x.shards[h%(1<<shardBits)], idSlot{uint16(bits), uint16(bits >> 16), uint16(bits >> 32)}
}

func (s idSlot) bits() uint64  { return uint64(s[0]) | uint64(s[1])<<16 | uint64(s[2])<<32 }
func (s idSlot) place() uint32 { return uint32(s.bits() % (1 << placeBits)) }
func (s idSlot) hash() uint64  { return s.bits() >> placeBits }
func (s idSlot) isFree() bool  { return s == idSlot{} }

// first returns the first slot to examine for an id with the hash of slot.
func (s *idShard) first(slot idSlot) int { return int(slot.hash() * uint64(len(s.slots)) >> hashBits) }

// next returns the slot to examine after slot i.
func (s *idShard) next(i int) int {
	if i++; i < len(s.slots) {
		return i
	}
	return 0
}

// distance returns how many slots before slot i the first one of its id is.
func (s *idShard) distance(i int) int {
	d := i - s.first(s.slots[i])
	if d < 0 {
		d += len(s.slots)
	}
	return d
}

// precedes reports whether slot i is to be examined before those whose distance would be d at i.
func (s *idShard) precedes(i, d int) bool { return !s.slots[i].isFree() && s.distance(i) >= d }

// find returns the place of an id in its store.
func (x *idIndex) find(store idStore, id *job.ID) (place uint32, ok bool) {
	shard, wanted := x.locate(id, 0)
	if shard.used == 0 {
		return 0, false
	}
	for i, d := shard.first(wanted), 0; shard.precedes(i, d); i, d = shard.next(i), d+1 {
		if slot := shard.slots[i]; slot.hash() == wanted.hash() {
			if stored := store.idAt(slot.place()); stored != nil && *stored == *id {
				return slot.place(), true
			}
		}
	}
	return 0, false
}

// add adds an id, which the index does not have and the store has at a place.
func (x *idIndex) add(store idStore, id *job.ID, place uint32) {
	shard, slot := x.locate(id, place)
	full := (shard.used+1)*10 > len(shard.slots)*9
	sparse := len(shard.slots) > 64 && len(shard.slots)/8 > store.ids()>>shardBits
	if full || sparse {
		shard.rebuild(store)
	}
	shard.put(slot)
}

// put adds a slot to a shard that has a free one.
func (s *idShard) put(slot idSlot) {
	i, d := s.first(slot), 0
	for s.precedes(i, d) {
		i, d = s.next(i), d+1
	}
	for !slot.isFree() { // moves the slots from i on
		slot, s.slots[i] = s.slots[i], slot
		i = s.next(i)
	}
	s.used++
}

// move changes the place of an id, which the index has with the place from.
func (x *idIndex) move(id *job.ID, from, to uint32) {
	shard, slot := x.locate(id, from)
	i := shard.first(slot)
	for range shard.slots {
		if shard.slots[i] == slot {
			_, shard.slots[i] = x.locate(id, to)
			return
		}
		i = shard.next(i)
	}
	panic(fmt.Sprintf("ledger: id %s is not in the index", id))
}

// rebuild drops the slots of ids that the store has no more, and gives the shard a new size.
func (s *idShard) rebuild(store idStore) {
	kept := slices.DeleteFunc(s.slots, func(slot idSlot) bool { return slot.isFree() || !store.has(slot.place()) })
	*s = idShard{slots: make([]idSlot, max(8, len(kept)*4/3))}
	for _, slot := range kept {
		s.put(slot)
	}
}
