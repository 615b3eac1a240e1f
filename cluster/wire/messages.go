package wire

import (
	"math"
	"time"

	"yardmaster/job"
)

// AppendBatch writes assignments for a node.
func AppendBatch(b []byte, v *job.Batch) []byte {
	b = append(b, version)
	b = putUint(b, v.Epoch)
	b = putUint(b, v.Number)
	b = putUint(b, v.Incarnation)
	b = putUint(b, uint64(len(v.Assignments)))
	for i := range v.Assignments {
		b = putAssignment(b, &v.Assignments[i])
	}
	return b
}

// ParseBatch reads what [AppendBatch] wrote. Bodies share the message.
func ParseBatch(b []byte) (job.Batch, error) {
	r := open(b)
	v := job.Batch{Epoch: r.uint(), Number: r.uint(), Incarnation: r.uint()}
	n := r.count(assignmentSize)
	if n > 0 {
		v.Assignments = make([]job.Assignment, n)
	}
	var before job.Assignment
	for i := range v.Assignments {
		r.assignment(&v.Assignments[i], &before)
		before = v.Assignments[i]
	}
	return v, r.close()
}

const assignmentSize = 16 + 19 // the id and one byte for each other field, at least

func putAssignment(b []byte, v *job.Assignment) []byte {
	b = append(b, v.Job[:]...)
	b = putUint(b, uint64(v.N))
	b = putUint(b, uint64(v.Attempt))
	b = putUint(b, uint64(v.MaxAttempts))
	b = putString(b, v.Queue)
	b = putString(b, v.Function)
	b = append(b, byte(v.Kind))
	b = putString(b, v.Key)
	b = putString(b, v.Worker)
	b = putUint(b, v.Epoch)
	b = putUint(b, v.Fence)
	b = putInt(b, int64(v.Timeout))
	b = putTime(b, v.Accepted)
	b = putTime(b, v.RunAt)
	b = putBool(b, v.Redelivered)
	b = putPosition(b, v.Position)
	b = putMaybe(b, v.Body)
	b = putTime(b, v.Started)
	return putUint(b, v.Moved)
}

func (r *reader) assignment(v, before *job.Assignment) {
	v.Job = r.id()
	v.N = r.uint32()
	v.Attempt = r.uint32()
	v.MaxAttempts = r.uint32()
	v.Queue = r.same(before.Queue)
	v.Function = r.same(before.Function)
	v.Kind = job.Kind(r.byte())
	v.Key = r.same(before.Key)
	v.Worker = r.same(before.Worker)
	v.Epoch = r.uint()
	v.Fence = r.uint()
	v.Timeout = time.Duration(r.int())
	v.Accepted = r.time()
	v.RunAt = r.time()
	v.Redelivered = r.bool()
	v.Position = r.position()
	v.Body = r.maybe()
	v.Started = r.time()
	v.Moved = r.uint()
}

func (r *reader) id() (id job.ID) {
	copy(id[:], r.take(uint64(len(id))))
	return id
}

func putPosition(b []byte, p job.Position) []byte { return putUint(append(b, p.Lane), p.Seq) }
func (r *reader) position() job.Position          { return job.Position{Lane: r.byte(), Seq: r.uint()} }

// AppendAnswers writes a node's answers to a batch, in its order.
func AppendAnswers(b []byte, v []job.Answer) []byte {
	b = putUint(append(b, version), uint64(len(v)))
	for _, a := range v {
		b = append(b, byte(a))
	}
	return b
}

// ParseAnswers reads what [AppendAnswers] wrote.
func ParseAnswers(b []byte) ([]job.Answer, error) {
	r := open(b)
	v := make([]job.Answer, r.count(1))
	for i := range v {
		v[i] = job.Answer(r.byte())
	}
	return v, r.close()
}

// AppendReport writes a node's report.
func AppendReport(b []byte, v *job.Report) []byte {
	b = putString(append(b, version), v.Node)
	b = putUint(b, v.Incarnation)
	b = putUint(b, v.Rev)
	b = putBool(b, v.Full)
	b = putUint(b, v.Seen)
	b = putUint(b, uint64(len(v.Offers)))
	for _, o := range v.Offers {
		b = append(b, byte(o.Kind))
		b = putString(b, o.Key)
		b = putString(b, o.Worker)
		b = putUint(b, uint64(max(o.Free, 0)))
	}
	b = putUint(b, uint64(len(v.Outcomes)))
	for i := range v.Outcomes {
		b = putOutcome(b, &v.Outcomes[i])
	}
	b = putUint(b, uint64(len(v.Notes)))
	if len(v.Notes) > 0 {
		b = putUint(b, v.FirstNote)
	}
	for _, n := range v.Notes {
		b = putBool(b, n.Stalled)
		b = putString(b, n.Worker)
		b = putString(b, n.Detail)
	}
	return b
}

// ParseReport reads what [AppendReport] wrote. Results share the message.
func ParseReport(b []byte) (job.Report, error) {
	r := open(b)
	v := job.Report{Node: r.string(), Incarnation: r.uint(), Rev: r.uint(), Full: r.bool(), Seen: r.uint()}
	if n := r.count(4); n > 0 {
		v.Offers = make([]job.Offer, n)
	}
	var before job.Offer
	for i := range v.Offers {
		v.Offers[i] = job.Offer{Kind: job.Kind(r.byte()), Key: r.same(before.Key), Worker: r.same(before.Worker), Free: r.free()}
		before = v.Offers[i]
	}
	if n := r.count(outcomeSize); n > 0 {
		v.Outcomes = make([]job.Outcome, n)
	}
	for i := range v.Outcomes {
		r.outcome(&v.Outcomes[i])
	}
	if n := r.count(3); n > 0 {
		v.FirstNote, v.Notes = r.uint(), make([]job.Note, n)
	}
	for i := range v.Notes {
		v.Notes[i] = job.Note{Stalled: r.bool(), Worker: r.string(), Detail: r.string()}
	}
	return v, r.close()
}

func (r *reader) free() int {
	v := r.uint()
	if v > math.MaxInt32 {
		r.fail()
		return 0
	}
	return int(v)
}

const outcomeSize = 16 + 4

// The parts of an outcome that are mostly absent.
const (
	hasMsgpack = 1 << iota
	hasBlob
	hasFault
	hasRetryAfter
	isFinal
	isStarted
	allOutcomeFlags = 1<<iota - 1
)

func putOutcome(b []byte, v *job.Outcome) []byte {
	flags := flag(v.Result.Msgpack, hasMsgpack) | flag(v.Blob != nil, hasBlob) | flag(v.Fault != nil, hasFault) |
		flag(v.RetryAfter != nil, hasRetryAfter) | flag(v.Final, isFinal) | flag(v.Started, isStarted)
	b = append(b, v.Job[:]...)
	b = putUint(b, uint64(v.N))
	b = append(b, byte(v.Status), flags)
	b = putMaybe(b, v.Result.Data)
	if v.Blob != nil {
		b = putString(b, v.Blob.Name)
		b = putInt(b, int64(v.Blob.Chunks))
		b = putInt(b, v.Blob.Size)
		b = putString(b, v.Blob.SHA256)
	}
	if v.Fault != nil {
		b = putString(b, v.Fault.Message)
		b = putString(b, v.Fault.Type)
		b = putString(b, v.Fault.Code)
		b = putMaybe(b, v.Fault.Details)
	}
	if v.RetryAfter != nil {
		b = putInt(b, int64(*v.RetryAfter))
	}
	return b
}

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

func (r *reader) outcome(v *job.Outcome) {
	v.Job = r.id()
	v.N = r.uint32()
	v.Status = job.Status(r.byte())
	flags := r.byte()
	if flags&^allOutcomeFlags != 0 || v.Status < job.Success || v.Status > job.Cancelled {
		r.fail() // a status beyond those has no name
		return
	}
	v.Result = job.Value{Msgpack: flags&hasMsgpack != 0, Data: r.maybe()}
	v.Final, v.Started = flags&isFinal != 0, flags&isStarted != 0
	if flags&hasBlob != 0 {
		v.Blob = &job.Blob{Name: r.string(), Chunks: int(r.int()), Size: r.int(), SHA256: r.string()}
	}
	if flags&hasFault != 0 {
		v.Fault = &job.Fault{Message: r.string(), Type: r.string(), Code: r.string(), Details: r.maybe()}
	}
	if flags&hasRetryAfter != 0 {
		d := time.Duration(r.int())
		v.RetryAfter = &d
	}
}

// AppendReportAck writes the authority's answer to a report.
func AppendReportAck(b []byte, v *job.ReportAck) []byte {
	b = putUint(append(b, version), v.Epoch)
	b = putBool(b, v.WantFull)
	b = putUint(b, uint64(len(v.Settled)))
	for _, s := range v.Settled {
		b = append(b, flag(s.Stale, 1)|flag(s.Dup, 2), byte(s.State))
		b = putUint(putTime(b, s.RunAt), s.Index)
	}
	return b
}

// ParseReportAck reads what [AppendReportAck] wrote.
func ParseReportAck(b []byte) (job.ReportAck, error) {
	r := open(b)
	v := job.ReportAck{Epoch: r.uint(), WantFull: r.bool()}
	if n := r.count(4); n > 0 {
		v.Settled = make([]job.Settled, n)
	}
	for i := range v.Settled {
		flags, state := r.byte(), job.State(r.byte())
		if flags > 3 || state > job.Failed {
			r.fail()
		}
		v.Settled[i] = job.Settled{Stale: flags&1 != 0, Dup: flags&2 != 0, State: state, RunAt: r.time(), Index: r.uint()}
	}
	return v, r.close()
}

// AppendBeat writes a sign of life.
func AppendBeat(b []byte, v *job.Beat) []byte {
	b = putString(append(b, version), v.Node)
	b = putUint(b, v.Incarnation)
	b = putTime(b, v.At)
	b = putUint(b, v.Rev)
	b = putInt(b, int64(v.Running))
	b = putBool(b, v.Draining)
	b = putStrings(b, v.Runners)
	return putString(putMaybe(b, v.Lanes), v.Edge)
}

// ParseBeat reads what [AppendBeat] wrote.
func ParseBeat(b []byte) (job.Beat, error) {
	r := open(b)
	v := job.Beat{Node: r.string(), Incarnation: r.uint(), At: r.time(), Rev: r.uint(), Running: int(r.int()), Draining: r.bool()}
	v.Runners, v.Lanes, v.Edge = r.strings(), r.maybe(), r.string()
	return v, r.close()
}

// AppendBeatAck writes the answer to a sign of life.
func AppendBeatAck(b []byte, v *job.BeatAck) []byte {
	b = putUint(append(b, version), v.Epoch)
	b = putInt(b, int64(v.Lease))
	b = putUint(putBool(b, v.WantFull), v.Batches)
	return putStrings(b, v.Edges)
}

// ParseBeatAck reads what [AppendBeatAck] wrote.
func ParseBeatAck(b []byte) (job.BeatAck, error) {
	r := open(b)
	v := job.BeatAck{Epoch: r.uint(), Lease: time.Duration(r.int()), WantFull: r.bool(), Batches: r.uint(), Edges: r.strings()}
	return v, r.close()
}

// AppendRecall writes the order to stop a dispatch.
func AppendRecall(b []byte, v *job.Recall) []byte {
	b = append(append(b, version), v.Job[:]...)
	b = putUint(b, uint64(v.N))
	b = putUint(b, v.Epoch)
	b = putString(b, string(v.Reason))
	return putUint(b, v.Moved)
}

// ParseRecall reads what [AppendRecall] wrote.
func ParseRecall(b []byte) (job.Recall, error) {
	r := open(b)
	v := job.Recall{Job: r.id(), N: r.uint32(), Epoch: r.uint(), Reason: job.RecallReason(r.string()), Moved: r.uint()}
	return v, r.close()
}

// AppendRecords writes a notice: records that a node has just stored.
func AppendRecords(b []byte, v []job.Record) []byte {
	b = putUint(append(b, version), uint64(len(v)))
	for i := range v {
		b = putPosition(b, v[i].Position)
		b = putString(b, v[i].Queue)
		b = putString(b, v[i].Key)
		b = putTime(b, v[i].Stored)
		b = putMaybe(b, v[i].Body)
	}
	return b
}

// ParseRecords reads what [AppendRecords] wrote. Bodies share the message.
func ParseRecords(b []byte) ([]job.Record, error) {
	r := open(b)
	v := make([]job.Record, r.count(6))
	queue := ""
	for i := range v {
		v[i] = job.Record{Position: r.position(), Queue: r.same(queue), Key: r.string(), Stored: r.time(), Body: r.maybe()}
		queue = v[i].Queue
	}
	return v, r.close()
}
