package ledger

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// maxDecisions is how many decisions are kept; the oldest are dropped.
const maxDecisions = 65_536

// Decision is what the ledger made of a record with guards.
type Decision struct {
	Ingested   Ingested
	Job        job.ID        // the job it became, was merged into, or duplicates; zero: none
	Queue      string        // queue of Job
	RetryAfter time.Duration // with IngestedRateLimited: until the key is free
	Reason     string        // with IngestedRejected and IngestedKeysFull
}

// decisionEntry is a decision and the record that it is about.
type decisionEntry struct {
	at       int64 // when the record was ingested, in Unix nanoseconds
	position job.Position
	id       job.ID
	accepted int64
	Decision
}

// decisions are kept until no client can still be waiting for them and no
// second copy of their record can still arrive. The list only grows at the end
// and shrinks at the front, so copies of the ledger share it.
type decisions struct {
	list       []decisionEntry
	first      uint64                  // number of list[0]
	byPosition map[job.Position]uint64 // number by record; nil in a copy
	byID       map[job.ID]uint64       // number of the last decision about an id; nil in a copy
}

func newDecisions() decisions {
	return decisions{byPosition: make(map[job.Position]uint64), byID: make(map[job.ID]uint64)}
}

func (d *decisions) copy() decisions { return decisions{list: d.list} }

func (d *decisions) add(r decisionEntry) {
	d.list = append(d.list, r)
	d.indexLast()
}

// indexLast adds the last decision of the list to the maps.
func (d *decisions) indexLast() {
	n := len(d.list) - 1
	r := &d.list[n]
	d.byPosition[r.position], d.byID[r.id] = d.first+uint64(n), d.first+uint64(n)
}

// forDuplicate returns the decision about another copy of the same record: a
// node that gets no acknowledgement from one lane stores the record in the
// next, with the same time. A producer's own retry has a later time, and is
// decided again.
func (d *decisions) forDuplicate(j *job.Job) (Decision, bool) {
	n, ok := d.byID[j.ID]
	if !ok || d.list[n-d.first].accepted != j.Accepted.UnixNano() {
		return Decision{}, false
	}
	r := d.list[n-d.first].Decision
	if r.Ingested == IngestedWaiting || r.Ingested == IngestedDelayed {
		r.Ingested = IngestedKnown
	}
	return r, true
}

// trim drops decisions that are older than before or too many, at most
// maxPruned at a time.
func (d *decisions) trim(before int64) {
	for range maxPruned {
		if len(d.list) == 0 || len(d.list) <= maxDecisions && d.list[0].at >= before {
			return
		}
		r := &d.list[0]
		if d.byPosition[r.position] == d.first {
			delete(d.byPosition, r.position)
		}
		if d.byID[r.id] == d.first {
			delete(d.byID, r.id)
		}
		d.list = d.list[1:]
		d.first++
	}
}

// Decision returns what became of the record with guards at position p. ok is
// false if there was no such record or its decision is no longer kept.
func (d *decisions) Decision(p job.Position) (r Decision, ok bool) {
	n, ok := d.byPosition[p]
	if !ok {
		return Decision{}, false
	}
	return d.list[n-d.first].Decision, true
}

// LastDecision returns the last decision about records of an id, and when it
// was made. ok is false if there was none or it is no longer kept.
func (d *decisions) LastDecision(id job.ID) (r Decision, at time.Time, ok bool) {
	n, ok := d.byID[id]
	if !ok {
		return Decision{}, time.Time{}, false
	}
	found := &d.list[n-d.first]
	return found.Decision, time.Unix(0, found.at).UTC(), true
}

func (c *codec) decisions(d *decisions) {
	list(c, &d.list, func(r *decisionEntry) {
		c.fields(&r.at, &r.position.Lane, &r.position.Seq, &r.id, &r.accepted,
			(*uint8)(&r.Ingested), &r.Job, (*name)(&r.Queue), &r.RetryAfter, &r.Reason)
		if r.Ingested == 0 || r.Ingested > IngestedKeysFull {
			c.fail(errCorrupt)
		}
		if c.decoding() {
			d.indexLast()
		}
	})
}
