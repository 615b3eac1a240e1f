package ledger

import (
	"iter"
	"slices"

	"github.com/yardmaster-dev/yardmaster/job"
)

// refusal is the id of a record with guards that was refused, and the decision about it.
type refusal struct {
	at       int64 // when the record was ingested, in Unix nanoseconds of elapsed time
	accepted int64 // when the call of its producer was accepted, in Unix nanoseconds
	id       job.ID
	ingested Ingested // IngestedRateLimited, IngestedRejected or IngestedKeysFull
}

// refusals are the refused records of which a lane may still hold another copy, in the order in
// which they were ingested. A copy is refused, too; a later call under the same key is decided
// again, because the answer to the first one invited it to come later.
type refusals struct {
	slabs   [][]refusal // of slabSize, except for the last; they only grow at the end, so copies share them
	dropped int         // number of refusals in slabs[0] that are forgotten
	size    int
	first   uint32            // number of slabs[0][0]; refusals are numbered in the order in which they are added
	byID    map[job.ID]uint32 // number of the last refusal of each id; nil in a copy
}

func newRefusals() refusals { return refusals{byID: make(map[job.ID]uint32)} }

func (r *refusals) copy() refusals {
	return refusals{slabs: slices.Clone(r.slabs), dropped: r.dropped, size: r.size}
}

func (r *refusals) add(added refusal) {
	last := len(r.slabs) - 1
	if last < 0 || len(r.slabs[last]) == slabSize {
		r.slabs = append(r.slabs, nil)
		last++
	}
	r.slabs[last] = append(r.slabs[last], added)
	r.byID[added.id] = r.first + uint32(last*slabSize+len(r.slabs[last])-1)
	r.size++
}

// find returns the last refusal of an id, or nil.
func (r *refusals) find(id job.ID) *refusal {
	number, ok := r.byID[id]
	if !ok {
		return nil
	}
	i := number - r.first
	return &r.slabs[i/slabSize][i%slabSize]
}

// all returns an iterator over the refusals, oldest first.
func (r *refusals) all() iter.Seq[*refusal] {
	return func(yield func(*refusal) bool) {
		for i, slab := range r.slabs {
			if i == 0 {
				slab = slab[r.dropped:]
			}
			for k := range slab {
				if !yield(&slab[k]) {
					return
				}
			}
		}
	}
}

// oldest returns the refusal that is forgotten next, or nil.
func (r *refusals) oldest() *refusal {
	if len(r.slabs) == 0 {
		return nil
	}
	return &r.slabs[0][r.dropped]
}

// trim forgets refusals that are older than the given time, in Unix nanoseconds, at most maxPruned
// of them.
func (r *refusals) trim(before int64) {
	for range maxPruned {
		oldest := r.oldest()
		if oldest == nil || oldest.at >= before {
			return
		}
		if r.find(oldest.id) == oldest {
			delete(r.byID, oldest.id)
		}
		r.size--
		if r.dropped++; r.dropped == len(r.slabs[0]) {
			r.first, r.dropped = r.first+uint32(r.dropped), 0
			r.slabs[0] = nil // releases the refusals
			r.slabs = r.slabs[1:]
		}
	}
}

// forCopy returns the decision about a copy of a refused record; ok is false if no copy of the
// record was refused.
func (r *refusals) forCopy(j *job.Job) (decision Decision, ok bool) {
	refused := r.find(j.ID)
	if refused == nil || refused.accepted < j.Accepted.UnixNano() {
		return Decision{}, false
	}
	decision.Ingested = refused.ingested
	if refused.ingested != IngestedRateLimited {
		decision.Reason = "another copy of its record was refused"
	}
	return decision, true
}

// keepRefusal keeps the id of a record, given the decision about it, if the record was refused.
// Entries of an earlier level keep no such ids.
func (in *ingestion) keepRefusal(j *job.Job, decision *Decision) {
	switch decision.Ingested {
	case IngestedRateLimited, IngestedRejected, IngestedKeysFull:
		added := refusal{in.elapsed, j.Accepted.UnixNano(), j.ID, decision.Ingested}
		if known := in.refused.find(j.ID); in.outbox.level >= level8 && (known == nil || known.accepted < added.accepted) {
			in.refused.add(added)
		}
	}
}

// refusals encodes or decodes the refused records. An unknown result fails with errCorrupt.
func (c *codec) refusals(r *refusals) {
	each(c, r.size, r.all(), func(kept *refusal) {
		c.fields(&kept.at, &kept.accepted, &kept.id, (*uint8)(&kept.ingested))
		if !c.decoding() {
			return
		}
		if kept.ingested == 0 || kept.ingested > IngestedKeysFull {
			c.fail(errCorrupt)
		}
		r.add(*kept)
	})
}
