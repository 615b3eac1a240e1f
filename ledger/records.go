package ledger

import (
	"iter"

	"github.com/yardmaster-dev/yardmaster/job"
)

// find returns the job with an id, or nil if there is none.
func (j *jobs) find(id job.ID) *storedJob {
	stored := new(storedJob)
	if !j.loadID(stored, &id) {
		return nil
	}
	return stored
}

// loadID is load for the job with an id. It reports whether there is one. It is not inlined,
// so that find is: then most callers have the job on their stack.
//
//go:noinline
func (j *jobs) loadID(stored *storedJob, id *job.ID) bool {
	number, ok := j.number(id)
	if ok {
		j.load(stored, number)
	}
	return ok
}

// number returns the number of the record of the job with an id; ok is false if there is none.
func (j *jobs) number(id *job.ID) (number uint32, ok bool) {
	place, ok := j.byID.find(j, id)
	return place, ok && place&forgottenPlace == 0
}

// hasForgotten reports whether the id is that of a forgotten job. It must not be called on a copy.
func (j *jobs) hasForgotten(id *job.ID) bool {
	place, ok := j.byID.find(j, id)
	return ok && place&forgottenPlace != 0
}

// at returns the job whose record has a number.
func (j *jobs) at(number uint32) *storedJob {
	stored := new(storedJob)
	j.load(stored, number)
	return stored
}

// loaded returns an iterator over the jobs whose records have the numbers. Each is valid until the
// next one.
func (j *jobs) loaded(numbers iter.Seq[uint32]) iter.Seq[*storedJob] {
	return func(yield func(*storedJob) bool) {
		stored := new(storedJob)
		for number := range numbers {
			*stored = storedJob{}
			j.load(stored, number)
			if !yield(stored) {
				return
			}
		}
	}
}

// queueOf returns the queue of the job whose record has a number. In a copy of the ledger only
// its name may be read.
func (j *jobs) queueOf(number uint32) *queue {
	return j.traits.get(j.records.get(number).traitsNumber).queue
}

// load sets stored, which must be zero, to the job whose record has a number.
func (j *jobs) load(stored *storedJob, number uint32) {
	stored.record, stored.number = *j.records.get(number), number
	stored.traits = j.traits.get(stored.traitsNumber)
	stored.function = j.functions.get(stored.functionNumber)
	if stored.optionsNumber != 0 {
		stored.options = *j.options.get(stored.optionsNumber)
	}
	if stored.runNumber == 0 {
		return
	}
	run := &stored.run
	run.runRecord = *j.runs.get(stored.runNumber)
	run.executor = j.executors.get(run.executorNumber)
	if run.endNumber != 0 {
		run.end = *j.ends.get(run.endNumber)
	}
}

// save stores next in the place of old, which is zero for a new job, and sets its numbers and
// shared names.
func (j *jobs) save(old, next *storedJob) {
	next.functionNumber = j.functions.replace(old.functionNumber, old.function, next.function)
	next.function = j.functions.get(next.functionNumber)
	next.traitsNumber = j.traits.replace(old.traits, next.traits)
	next.optionsNumber = put(&j.options, old.optionsNumber, old.options, next.options)
	run := &next.run
	run.executorNumber = j.executors.replace(old.run.executorNumber, old.run.executor, run.executor)
	run.executor = j.executors.get(run.executorNumber)
	run.endNumber = put(&j.ends, old.run.endNumber, old.run.end, run.end)
	next.runNumber = put(&j.runs, old.runNumber, old.run.runRecord, run.runRecord)
	if next.number = old.number; next.number != 0 {
		*j.records.change(next.number) = next.record
		return
	}
	next.number = j.records.add(next.record)
	j.byID.add(j, &next.id, next.number)
}

// forget removes the record of a job that is in no index except byID, and adds the id to those of
// forgotten jobs at the time now, in Unix nanoseconds. removed is whether a caller has removed the
// job.
func (j *jobs) forget(stored *storedJob, now int64, removed bool) {
	if j.changes != nil {
		j.changes.forgotten(stored, removed)
	}
	none := &storedJob{record: record{id: stored.id}}
	j.save(stored, none) // releases what the record refers to
	j.records.remove(stored.number)
	j.byID.move(&stored.id, stored.number, j.forgotten.add(stored.id, now, removed))
}

// idAt, has and ids implement [idStore].
func (j *jobs) idAt(place uint32) *job.ID {
	if place&forgottenPlace != 0 {
		return j.forgotten.idAt(place)
	}
	return &j.records.get(place).id
}

// has looks at no record: each that is removed is removed from the index, too.
func (j *jobs) has(place uint32) bool {
	return place&forgottenPlace == 0 || j.forgotten.idAt(place) != nil
}

func (j *jobs) ids() int { return j.records.count + j.forgotten.size }
