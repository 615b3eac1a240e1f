package wire

import (
	"math"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// AppendAssignmentBatch appends the encoding of v to b.
func AppendAssignmentBatch(b []byte, v *job.AssignmentBatch) []byte {
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

// ParseAssignmentBatch parses what [AppendAssignmentBatch] wrote. Bodies share b's
// memory.
func ParseAssignmentBatch(b []byte) (job.AssignmentBatch, error) {
	r := open(b)
	v := job.AssignmentBatch{Epoch: r.uint(), Number: r.uint(), Incarnation: r.uint()}
	n := r.count(minAssignmentSize)
	if n > 0 {
		v.Assignments = make([]job.Assignment, n)
	}
	var prev job.Assignment
	for i := range v.Assignments {
		r.assignment(&v.Assignments[i], &prev)
		prev = v.Assignments[i]
	}
	return v, r.close()
}

// dispatchIDSize is the minimum size of an encoded dispatch ID.
const dispatchIDSize = 16 + 1

const minAssignmentSize = 16 + 19 // the job's ID and at least one byte for each other field

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
	b = putOptional(b, v.Body)
	b = putTime(b, v.Started)
	return putUint(b, v.MoveIndex)
}

func (r *reader) assignment(v, prev *job.Assignment) {
	v.Job = r.id()
	v.N = r.uint32()
	v.Attempt = r.uint32()
	v.MaxAttempts = r.uint32()
	v.Queue = r.repeated(prev.Queue)
	v.Function = r.repeated(prev.Function)
	v.Kind = job.Kind(r.byte())
	v.Key = r.repeated(prev.Key)
	v.Worker = r.repeated(prev.Worker)
	v.Epoch = r.uint()
	v.Fence = r.uint()
	v.Timeout = time.Duration(r.int())
	v.Accepted = r.time()
	v.RunAt = r.time()
	v.Redelivered = r.bool()
	v.Position = r.position()
	v.Body = r.optional()
	v.Started = r.time()
	v.MoveIndex = r.uint()
}

func (r *reader) id() (id job.ID) {
	copy(id[:], r.take(uint64(len(id))))
	return id
}

func putPosition(b []byte, p job.Position) []byte { return putUint(append(b, p.Lane), p.Seq) }
func (r *reader) position() job.Position          { return job.Position{Lane: r.byte(), Seq: r.uint()} }

// AppendAnswers appends the encoding of a node's answers to a batch, in the
// batch's order.
func AppendAnswers(b []byte, v []job.Answer) []byte {
	b = putUint(append(b, version), uint64(len(v)))
	for _, a := range v {
		b = append(b, byte(a))
	}
	return b
}

// ParseAnswers parses what [AppendAnswers] wrote.
func ParseAnswers(b []byte) ([]job.Answer, error) {
	r := open(b)
	v := make([]job.Answer, r.count(1))
	for i := range v {
		v[i] = job.Answer(r.byte())
	}
	return v, r.close()
}

// AppendReport appends the encoding of v to b.
func AppendReport(b []byte, v *job.Report) []byte {
	b = putString(append(b, version), v.Node)
	b = putUint(b, v.Incarnation)
	b = putUint(b, v.Rev)
	b = putBool(b, v.Full)
	b = putUint(b, v.SeenBatch)
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
	b = putUint(b, uint64(len(v.WorkerEvents)))
	if len(v.WorkerEvents) > 0 {
		b = putUint(b, v.FirstWorkerEvent)
	}
	for _, n := range v.WorkerEvents {
		b = putBool(b, n.Stalled)
		b = putString(b, n.Worker)
		b = putString(b, n.Detail)
	}
	return b
}

// ParseReport parses what [AppendReport] wrote. Results share b's memory.
func ParseReport(b []byte) (job.Report, error) {
	r := open(b)
	v := job.Report{Node: r.string(), Incarnation: r.uint(), Rev: r.uint(), Full: r.bool(), SeenBatch: r.uint()}
	if n := r.count(4); n > 0 {
		v.Offers = make([]job.Offer, n)
	}
	var prev job.Offer
	for i := range v.Offers {
		v.Offers[i] = job.Offer{Kind: job.Kind(r.byte()), Key: r.repeated(prev.Key), Worker: r.repeated(prev.Worker), Free: r.available()}
		prev = v.Offers[i]
	}
	if n := r.count(minOutcomeSize); n > 0 {
		v.Outcomes = make([]job.Outcome, n)
	}
	for i := range v.Outcomes {
		r.outcome(&v.Outcomes[i])
	}
	if n := r.count(3); n > 0 {
		v.FirstWorkerEvent, v.WorkerEvents = r.uint(), make([]job.WorkerEvent, n)
	}
	for i := range v.WorkerEvents {
		v.WorkerEvents[i] = job.WorkerEvent{Stalled: r.bool(), Worker: r.string(), Detail: r.string()}
	}
	return v, r.close()
}

// available reads the free capacity of an offer.
func (r *reader) available() int {
	v := r.uint()
	if v > math.MaxInt32 {
		r.fail()
		return 0
	}
	return int(v)
}

// minOutcomeSize is the minimum size of an encoded outcome: the job's ID and four
// fields.
const minOutcomeSize = 16 + 4

// Flags of an outcome: fields that are mostly absent, and boolean fields.
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
	b = putOptional(b, v.Result.Data)
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
		b = putOptional(b, v.Fault.Details)
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
		r.fail() // unknown flag or status
		return
	}
	v.Result = job.Value{Msgpack: flags&hasMsgpack != 0, Data: r.optional()}
	v.Final, v.Started = flags&isFinal != 0, flags&isStarted != 0
	if flags&hasBlob != 0 {
		v.Blob = &job.Blob{Name: r.string(), Chunks: int(r.int()), Size: r.int(), SHA256: r.string()}
	}
	if flags&hasFault != 0 {
		v.Fault = &job.Fault{Message: r.string(), Type: r.string(), Code: r.string(), Details: r.optional()}
	}
	if flags&hasRetryAfter != 0 {
		d := time.Duration(r.int())
		v.RetryAfter = &d
	}
}

// AppendReportAck appends the encoding of the authority's answer to a report.
func AppendReportAck(b []byte, v *job.ReportAck) []byte {
	b = putUint(append(b, version), v.Epoch)
	b = putBool(b, v.WantFull)
	b = putUint(b, uint64(len(v.Settled)))
	for _, s := range v.Settled {
		b = append(b, flag(s.Stale, 1)|flag(s.Duplicate, 2), byte(s.State))
		b = putUint(putTime(b, s.RunAt), s.Index)
	}
	return b
}

// ParseReportAck parses what [AppendReportAck] wrote.
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
		v.Settled[i] = job.Settled{Stale: flags&1 != 0, Duplicate: flags&2 != 0, State: state, RunAt: r.time(), Index: r.uint()}
	}
	return v, r.close()
}

// AppendHeartbeat appends the encoding of v to b.
func AppendHeartbeat(b []byte, v *job.Heartbeat) []byte {
	b = putString(append(b, version), v.Node)
	b = putUint(b, v.Incarnation)
	b = putTime(b, v.At)
	b = putUint(b, v.Rev)
	b = putInt(b, int64(v.Running))
	b = putBool(b, v.Draining)
	b = putStrings(b, v.Runners)
	b = putString(putOptional(b, v.Lanes), v.Edge)
	b = putUint(putUint(b, v.Epoch), v.AckSeq)
	b = putUint(b, uint64(len(v.Dispatches)))
	for _, d := range v.Dispatches {
		b = putUint(append(b, d.Job[:]...), uint64(d.N))
	}
	return b
}

// ParseHeartbeat parses what [AppendHeartbeat] wrote.
func ParseHeartbeat(b []byte) (job.Heartbeat, error) {
	r := open(b)
	v := job.Heartbeat{Node: r.string(), Incarnation: r.uint(), At: r.time(), Rev: r.uint(), Running: int(r.int()), Draining: r.bool()}
	v.Runners, v.Lanes, v.Edge = r.strings(), r.optional(), r.string()
	v.Epoch, v.AckSeq = r.uint(), r.uint()
	for range r.count(dispatchIDSize) {
		v.Dispatches = append(v.Dispatches, job.DispatchID{Job: r.id(), N: r.uint32()})
	}
	return v, r.close()
}

// AppendHeartbeatAck appends the encoding of the authority's answer to a
// heartbeat.
func AppendHeartbeatAck(b []byte, v *job.HeartbeatAck) []byte {
	b = putUint(append(b, version), v.Epoch)
	b = putInt(b, int64(v.Lease))
	b = putUint(putUint(putBool(b, v.WantFull), v.Seq), v.LastBatch)
	return putStrings(b, v.Edges)
}

// ParseHeartbeatAck parses what [AppendHeartbeatAck] wrote.
func ParseHeartbeatAck(b []byte) (job.HeartbeatAck, error) {
	r := open(b)
	v := job.HeartbeatAck{Epoch: r.uint(), Lease: time.Duration(r.int()), WantFull: r.bool(), Seq: r.uint(), LastBatch: r.uint(), Edges: r.strings()}
	return v, r.close()
}

// AppendRecall appends the encoding of v to b.
func AppendRecall(b []byte, v *job.Recall) []byte {
	b = append(append(b, version), v.Job[:]...)
	b = putUint(b, uint64(v.N))
	b = putUint(b, v.Epoch)
	b = putString(b, string(v.Reason))
	return putUint(b, v.MoveIndex)
}

// ParseRecall parses what [AppendRecall] wrote.
func ParseRecall(b []byte) (job.Recall, error) {
	r := open(b)
	v := job.Recall{Job: r.id(), N: r.uint32(), Epoch: r.uint(), Reason: job.RecallReason(r.string()), MoveIndex: r.uint()}
	return v, r.close()
}

// AppendRecords appends the encoding of records that a node has just stored.
func AppendRecords(b []byte, v []job.Record) []byte {
	b = putUint(append(b, version), uint64(len(v)))
	for i := range v {
		b = putPosition(b, v[i].Position)
		b = putString(b, v[i].Queue)
		b = putString(b, v[i].Key)
		b = putTime(b, v[i].Stored)
		b = putOptional(b, v[i].Body)
	}
	return b
}

// ParseRecords parses what [AppendRecords] wrote. Bodies share b's memory.
func ParseRecords(b []byte) ([]job.Record, error) {
	r := open(b)
	v := make([]job.Record, r.count(6))
	queue := ""
	for i := range v {
		v[i] = job.Record{Position: r.position(), Queue: r.repeated(queue), Key: r.string(), Stored: r.time(), Body: r.optional()}
		queue = v[i].Queue
	}
	return v, r.close()
}
