package ledger

import (
	"slices"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Alias is the job that the producer of a record was given because the record created none. It is
// found by the id that the record's job would have had, so that a repetition of the record gets
// the same job and changes nothing.
type Alias struct {
	Job   job.ID
	Queue string // of Job
	// Holder is true if Job held the record's unique key. Otherwise the record has replaced
	// the content of Job, whose debounce key was that of the record.
	Holder bool
}

// Decision returns the decision about the first record with the id. A repetition may get another
// one: see [IngestedKnown].
func (a Alias) Decision() Decision {
	d := Decision{Ingested: IngestedDebounced, Job: a.Job, Queue: a.Queue}
	if a.Holder {
		d.Ingested = IngestedDuplicate
	}
	return d
}

// placedAlias is an alias of the id at an offset in a slab of an [idRing].
type placedAlias struct {
	offset uint16
	Alias
}

// alias returns the alias of the id at a place; ok is false if it is the id of a job.
func (g *idRing) alias(place uint32) (a Alias, ok bool) {
	slab, offset := g.split(place)
	all := g.slabs[slab].aliases
	i, ok := slices.BinarySearchFunc(all, uint16(offset), func(a placedAlias, offset uint16) int { return int(a.offset) - int(offset) })
	if !ok {
		return Alias{}, false
	}
	return all[i].Alias, true
}

// Alias returns the job that the producer of a record was given, if the record with this id
// became no job within the dedupe horizon because it was merged into the job or the job held
// its unique key. It must not be called on a copy.
func (j *jobs) Alias(id job.ID) (a Alias, ok bool) {
	place, ok := j.byID.find(j, &id)
	if !ok || place&forgottenPlace == 0 {
		return Alias{}, false
	}
	return j.forgotten.alias(place)
}

// addAlias keeps the id of a record that became no job; no job may have it. now is in Unix
// nanoseconds.
func (j *jobs) addAlias(id job.ID, now int64, alias Alias) {
	j.byID.add(j, &id, j.forgotten.addAlias(id, now, alias))
}

// keepAlias keeps the id of a record, given the decision about it, if the record was merged into
// another job or is a duplicate of one. Entries of an earlier level keep no such ids.
func (in *ingestion) keepAlias(id job.ID, decision *Decision) {
	if in.outbox.level < level8 || decision.Job == id {
		return
	}
	switch decision.Ingested {
	case IngestedDuplicate, IngestedDebounced:
		in.jobs.addAlias(id, in.elapsed, Alias{Job: decision.Job, Queue: decision.Queue, Holder: decision.Ingested == IngestedDuplicate})
	}
}

// decideAlias returns the decision about a record that has an alias. Its producer gets the same job
// as the producer of the first record with the id. If the first record was merged into a job of
// another queue, the record is rejected.
func (in *ingestion) decideAlias(j *job.Job, identity string, alias Alias) Decision {
	if decision, ok := in.forDuplicate(j); ok {
		return decision
	}
	switch {
	case alias.Holder:
		return alias.Decision()
	case alias.Queue != j.Queue:
		reason := "id_conflict: the id names a record that was merged into a job of queue " + alias.Queue
		in.rejectJob(j, identity, reason)
		return Decision{Ingested: IngestedRejected, Reason: reason}
	}
	return Decision{Ingested: IngestedKnown, Job: alias.Job, Queue: alias.Queue}
}

// aliases encodes or decodes the aliases of a slab that has length ids.
func (c *codec) aliases(slab *idSlab, length uint64) {
	list(c, &slab.aliases, func(a *placedAlias) {
		offset := uint64(a.offset)
		c.fields(&offset, &a.Job, (*name)(&a.Queue), &a.Holder)
		if !c.decoding() {
			return
		}
		a.offset = uint16(offset)
		if before := len(slab.aliases) - 2; offset >= length || before >= 0 && slab.aliases[before].offset >= a.offset {
			c.fail(errCorrupt)
		}
	})
}
