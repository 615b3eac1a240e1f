package edge

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// jobFields returns a job as shown by JOB, LSJOB and AWAIT.
func (q queries) jobFields(v *job.View) overhop.Fields {
	runAt := v.RunAt
	if runAt.IsZero() {
		runAt = v.Created
	}
	r := overhop.Fields{
		"uuid": v.ID.String(), "jid": jid(v.Queue, v.ID), "queue_name": v.Queue,
		"status": v.State.String(), "payload": payloadOf(v),
		"created_at": v.Created, "execution_start_at": runAt,
		"max_attempts": orNil(int64(v.MaxAttempts)), "retry_interval_ms": orNil(v.RetryInterval.Milliseconds()),
		"runtime": q.runtimeFields(v),
		// The fields from here on are extensions.
		"priority": int64(v.Priority), "timeout_ms": orNil(v.Timeout.Milliseconds()),
		"result": valueOf(v.Result, recordDepth), "error": faultOf(v),
		"started_at": timeOrNil(v.Started), "completed_at": timeOrNil(v.Ended),
		"worker_id": orNil(strings.TrimPrefix(v.Worker, "overhop/")), "node": orNil(v.Node),
	}
	if v.Function != "" {
		r["fn"] = v.Function
	}
	if v.PayloadGone {
		r["payload_gone"] = true
	}
	return r
}

// running is [Server.Running].
func (ds *deliveries) running(id job.ID, n uint32) (r job.Progress, ok bool) {
	ds.mu.Lock()
	d := ds.dispatches[job.DispatchID{Job: id, N: n}]
	if d == nil || d.state != running && d.state != recalling {
		ds.mu.Unlock()
		return r, false
	}
	lease, progress := d.leaseUntil, d.progress // progress is replaced, never changed in place
	ds.mu.Unlock()
	r.Lease = lease
	if percent, known := progress.Get("percent").Int(); known {
		r.Percent = &percent
	}
	r.Data = jobValue(progress.Get("data"))
	return r, true
}

// runtimeFields returns a job's runtime part, with the lease and progress of a
// running dispatch: from this node, or from v if the dispatch is at another.
func (q queries) runtimeFields(v *job.View) overhop.Fields {
	r := overhop.Fields{"attempts_so_far": v.Attempts, "last_error": orNil(v.Reason)}
	if now, here := q.ds.running(v.ID, v.Dispatches); here {
		r["lease_until"], r["progress"] = now.Lease, progressOf(&now)
	} else if v.Progress != nil {
		r["lease_until"], r["progress"] = v.Progress.Lease, progressOf(v.Progress)
	}
	if r["progress"] == nil {
		delete(r, "progress")
	}
	return r
}

// progressDepth is how deep the data of a progress may be nested. Within a
// record it is two levels deeper than the payload.
const progressDepth = recordDepth - 2

// progressOf returns the last PROGRESS of a dispatch, nil if there is none.
func progressOf(r *job.Progress) any {
	p := overhop.Fields{}
	if r.Percent != nil {
		p["percent"] = *r.Percent
	}
	if data := valueOf(r.Data, progressDepth); data != nil {
		p["data"] = data
	}
	if len(p) == 0 {
		return nil
	}
	return p
}

// payloadOf returns the job's body: params as a map, any other value unchanged.
// A MessagePack value that is nested too deeply is returned as its bytes.
func payloadOf(v *job.View) any {
	switch {
	case v.Spec == nil:
		return nil
	case len(v.Spec.Params) > 0:
		return fromJSON(v.Spec.Params, recordDepth)
	case len(v.Spec.Payload) > 0:
		return fromMsgpack(v.Spec.Payload, recordDepth)
	}
	return nil
}

// recordDepth is how deep a value may be nested within a record, which is
// itself within the envelope, the payload and a list.
const recordDepth = overhop.MaxDepth - 5

func fromJSON(text []byte, levels int) any {
	value, err := overhop.AppendFromJSON(nil, text, levels)
	if err != nil {
		return text
	}
	return overhop.Raw(value)
}

func fromMsgpack(b []byte, levels int) any {
	if overhop.CheckDepth(b, levels) != nil {
		return b
	}
	return overhop.Raw(b)
}

func valueOf(v job.Value, levels int) any {
	switch {
	case len(v.Data) == 0:
		return nil
	case v.Msgpack:
		return fromMsgpack(v.Data, levels)
	}
	return fromJSON(v.Data, levels)
}

func faultOf(v *job.View) any {
	if v.Fault == nil {
		return nil
	}
	f := overhop.Fields{"message": v.Fault.Message}
	if v.Fault.Type != "" {
		f["type"] = v.Fault.Type
	}
	if v.Fault.Code != "" {
		f["code"] = v.Fault.Code
	}
	if len(v.Fault.Details) > 0 && json.Valid(v.Fault.Details) {
		f["details"] = fromJSON(v.Fault.Details, recordDepth)
	}
	return f
}

func timeOrNil(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// orNil returns v, or nil if it is the zero value.
func orNil[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}
