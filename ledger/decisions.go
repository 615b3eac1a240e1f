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

// decisions are kept for clients that wait for them, and are the same for a second copy of
// their record. A copy that is ingested after they were dropped is decided by [Alias] and by
// refusals. The list only grows at the end and shrinks at the front, so copies of the ledger share
// it.
type decisions struct {
	list       []decisionEntry
	first      uint64                  // number of list[0]
	byPosition map[job.Position]uint64 // number by record; nil in a copy
	byID       map[job.ID]uint64       // number of the last decision about an id; nil in a copy
	max        int
}

func newDecisions() decisions {
	return decisions{byPosition: make(map[job.Position]uint64), byID: make(map[job.ID]uint64), max: maxDecisions}
}

func (d *decisions) copy() decisions { return decisions{list: d.list} }

func (d *decisions) add(entry decisionEntry) {
	d.list = append(d.list, entry)
	d.indexLast()
}

// indexLast adds the last decision of the list to the maps.
func (d *decisions) indexLast() {
	last := len(d.list) - 1
	entry, number := &d.list[last], d.first+uint64(last)
	d.byPosition[entry.position], d.byID[entry.id] = number, number
}

// forDuplicate returns the decision that also holds for the record j. One case is
// another copy of the decided record: a node that gets no acknowledgement from one
// lane stores the record in the next, with the same time. The other is the record of
// an earlier call whose retry was decided first, because that call's lane was slow: the
// producer has the answer to the retry. ok is false without such a decision. A
// producer's later call is decided again.
func (d *decisions) forDuplicate(j *job.Job) (decision Decision, ok bool) {
	number, ok := d.byID[j.ID]
	if !ok || d.list[number-d.first].accepted < j.Accepted.UnixNano() {
		return Decision{}, false
	}
	decision = d.list[number-d.first].Decision
	if decision.Ingested == IngestedWaiting || decision.Ingested == IngestedDelayed {
		decision.Ingested = IngestedKnown
	}
	return decision, true
}

// trim drops decisions that were made before the given time, in Unix
// nanoseconds, or are too many, at most maxPruned at a time.
func (d *decisions) trim(before int64) {
	for range maxPruned {
		if len(d.list) == 0 || len(d.list) <= d.max && d.list[0].at >= before {
			return
		}
		oldest := &d.list[0]
		if d.byPosition[oldest.position] == d.first {
			delete(d.byPosition, oldest.position)
		}
		if d.byID[oldest.id] == d.first {
			delete(d.byID, oldest.id)
		}
		d.list = d.list[1:]
		d.first++
	}
}

// Decision returns what became of the record with guards at position p. ok is
// false if there was no such record or its decision is no longer kept.
func (d *decisions) Decision(p job.Position) (decision Decision, ok bool) {
	number, ok := d.byPosition[p]
	if !ok {
		return Decision{}, false
	}
	return d.list[number-d.first].Decision, true
}

// LastDecision returns the last decision about records of an id, and when it
// was made. ok is false if there was none or it is no longer kept.
func (d *decisions) LastDecision(id job.ID) (decision Decision, at time.Time, ok bool) {
	number, ok := d.byID[id]
	if !ok {
		return Decision{}, time.Time{}, false
	}
	entry := &d.list[number-d.first]
	return entry.Decision, time.Unix(0, entry.at).UTC(), true
}

// decisions encodes or decodes the list of decisions. An unknown result fails
// with errCorrupt.
func (c *codec) decisions(d *decisions) {
	list(c, &d.list, func(entry *decisionEntry) {
		c.fields(&entry.at, &entry.position.Lane, &entry.position.Seq, &entry.position.Index, &entry.id, &entry.accepted,
			(*uint8)(&entry.Ingested), &entry.Job, (*name)(&entry.Queue), &entry.RetryAfter, &entry.Reason)
		if entry.Ingested == 0 || entry.Ingested > IngestedKeysFull {
			c.fail(errCorrupt)
		}
		if c.decoding() {
			d.indexLast()
		}
	})
}
