package job

import "time"

// Record is one message of a lane: an accepted job as its producer wrote it.
type Record struct {
	Position
	Queue  string
	Key    string    // the producer's idempotency key (Nats-Msg-Id); "" if it gave none
	Stored time.Time // the node's time for what a node published, else the stream's
	Body   []byte    // the Spec's JSON, with what its producer said in headers
	Bad    error     // why what it said in headers cannot be; nil: it can
}

// Defaults are what jobs get that do not say otherwise; the same on every
// member.
type Defaults struct {
	UniqueTTL time.Duration // of a unique key; 0: [DefaultUniqueTTL]
	ResultTTL time.Duration // how long a result is shown; 0: while the yard keeps it
}

// fill gives j, made of s, what s left open.
func (d Defaults) fill(j *Job, s *Spec) {
	if d.UniqueTTL > 0 && s.UniqueKey != nil && s.UniqueTTLMS == nil {
		j.Guards.Unique.For = d.UniqueTTL
	}
	if s.ResultTTLMS == nil {
		j.ResultTTL = d.ResultTTL
	}
}

// Is tells whether a job was made of this record, or refused: see [Record.Facts].
// lane is the identity of the record's lane.
func (r *Record) Is(id ID, lane string) bool {
	if key, err := KeyID(r.Queue, r.Key); r.Key != "" && err == nil && key == id {
		return true
	}
	return id == RecordID(lane, r.Seq, r.Stored)
}

// Facts reads a record: the job it asks for, or why it cannot be one. lane is
// the identity of the record's lane. The id is valid even with an error, so
// that a refusal can be told under a stable name.
func (r *Record) Facts(lane string, d Defaults) (Job, error) {
	id, err := KeyID(r.Queue, r.Key)
	if r.Key == "" || err != nil {
		id = RecordID(lane, r.Seq, r.Stored)
	}
	if err != nil {
		return Job{ID: id, Queue: r.Queue, Position: r.Position, Accepted: r.Stored}, &InvalidError{Reason: err.Error()}
	}
	if r.Bad != nil {
		return Job{ID: id, Queue: r.Queue, Position: r.Position, Accepted: r.Stored}, r.Bad
	}
	spec, err := ParseSpec(r.Body)
	if err == nil {
		err = ValidQueue(r.Queue)
	}
	j := spec.Job(id, r.Queue, r.Position, r.Stored)
	d.fill(&j, &spec)
	return j, err
}
