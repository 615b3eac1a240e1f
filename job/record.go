package job

import (
	"errors"
	"time"
)

// Record is an accepted job as its producer wrote it: a message of a lane, or one of those
// that a message holds.
type Record struct {
	Position
	Queue   string
	Key     string    // the producer's idempotency key (Nats-Msg-Id); "": none
	Stored  time.Time // the publishing node's time, or the stream's if a client published directly
	Body    []byte    // the Spec's JSON, merged with what the producer gave in headers
	Invalid error     `msgpack:"-"` // why the record is not a job although its body may be; nil: it may be one
	Owner   ID        `msgpack:"-"` // the job of a relocated record; zero: of a record in a lane
	Last    bool      // it is the last record of its message
}

// Defaults are applied to jobs that do not set a value themselves. They are the
// same on every member.
type Defaults struct {
	UniqueTTL time.Duration // of a unique key without a TTL; 0: [DefaultUniqueTTL]
	ResultTTL time.Duration // how long a result is kept visible; 0: as long as it is stored
}

// apply sets those fields of j that s, from which j was made, leaves open.
func (d Defaults) apply(j *Job, s *Spec) {
	if d.UniqueTTL > 0 && s.UniqueKey != nil && s.UniqueTTLMS == nil && s.UniqueUntil == nil {
		j.Guards.Unique.TTL = d.UniqueTTL
	}
	if s.ResultTTLMS == nil {
		j.ResultTTL = d.ResultTTL
	}
}

// Matches reports whether id may be the id of this record's job: that of its
// key, or that of its place. lane is the identity of the record's lane. A
// relocated record has the id of its job.
func (r *Record) Matches(id ID, lane string) bool {
	if r.Relocated() {
		return r.Owner == id
	}
	if key, err := KeyID(r.Queue, r.Key); r.Key != "" && err == nil && key == id {
		return true
	}
	if key, ok := parseID(r.Key); ok && key == id { // the nil UUID, which earlier builds accepted
		return true
	}
	return id == RecordID(lane, r.Position, r.Stored)
}

// Job returns the job that the record asks for, with defaults for what the record
// leaves open. lane is the identity of the record's lane, from which the job's ID is
// derived if the record has no key. If the record does not describe a valid job, the
// error is an [*InvalidError]; the returned Job still has a valid ID, so that the
// rejection can be published under a stable name.
func (r *Record) Job(lane string, defaults Defaults) (Job, error) {
	j, _, err := r.Parse(lane, defaults)
	return j, err
}

// Parse is [Record.Job] that also returns the specification of a valid job, which shares
// memory with the record.
func (r *Record) Parse(lane string, defaults Defaults) (Job, Spec, error) {
	id, err := KeyID(r.Queue, r.Key)
	if r.Key == "" || err != nil || errors.Is(r.Invalid, ErrKeysDiffer) {
		id = RecordID(lane, r.Position, r.Stored)
	}
	rejected := Job{ID: id, Queue: r.Queue, Position: r.Position, Accepted: r.Stored}
	if err != nil {
		return rejected, Spec{}, &InvalidError{Reason: err.Error()}
	}
	if r.Invalid != nil {
		return rejected, Spec{}, r.Invalid
	}
	spec, err := parseRecord(r.Body, r.Queue, r.Key, id)
	if err == nil {
		err = ValidQueue(r.Queue)
	}
	j := spec.Job(id, r.Queue, r.Position, r.Stored)
	defaults.apply(&j, &spec)
	return j, spec, err
}
