package edge

import (
	"cmp"
	"encoding/json"
	"strings"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// jobFields returns a job as shown by JOB, LSJOB and AWAIT.
func (q queries) jobFields(view *job.View) overhop.Fields {
	runAt := cmp.Or(view.RunAt, view.Created)
	record := overhop.Fields{
		"uuid": view.ID.String(), "jid": jid(view.Queue, view.ID), "queue_name": view.Queue,
		"status":     view.State.String(),
		"created_at": view.Created, "execution_start_at": runAt,
		"max_attempts": orNil(int64(view.MaxAttempts)), "retry_interval_ms": orNil(view.RetryInterval.Milliseconds()),
		"runtime": q.runtimeFields(view),
		// The fields from here on are extensions.
		"priority": int64(view.Priority), "timeout_ms": orNil(view.Timeout.Milliseconds()),
		"error":      q.faultOf(view),
		"started_at": orNil(view.Started), "completed_at": orNil(view.Ended),
		"worker_id": orNil(strings.TrimPrefix(view.Worker, "overhop/")), "node": orNil(view.Node),
	}
	q.setValue(record, "payload", payloadOf(view), recordDepth)
	q.setValue(record, "result", view.Result, recordDepth)
	if view.Function != "" {
		record["fn"] = view.Function
	}
	if view.Key != "" {
		record["key"] = view.Key
	}
	if view.RetryOnTimeout != nil {
		record["retry_on_timeout"] = *view.RetryOnTimeout
	}
	if view.PayloadGone {
		record["payload_gone"] = true
	}
	setLabels(record, view)
	setResultGone(record, view)
	return record
}

// setLabels adds under which key a job uses limits, its tags and metadata, and when it expires,
// as far as it has them.
func setLabels(record overhop.Fields, view *job.View) {
	if view.LimitKey != "" {
		record["limit_key"] = view.LimitKey
	}
	if len(view.Limits) > 0 {
		limits := overhop.Fields{}
		for _, use := range view.Limits {
			limits[use.Limit] = use.Key
		}
		record["limits"] = limits
	}
	if !view.Expires.IsZero() {
		record["expires_at"] = view.Expires
	}
	if view.Spec != nil && len(view.Spec.Tags) > 0 {
		record["tags"] = view.Spec.Tags
	}
	if view.Spec != nil && len(view.Spec.Meta) > 0 {
		record["meta"] = view.Spec.Meta
	}
}

// setResultGone adds why there is no result any more to the record or the JOBEND of a job
// that had one.
func setResultGone(message overhop.Fields, view *job.View) {
	if view.ResultGone != "" {
		message["result_gone"] = "result_" + string(view.ResultGone)
	}
}

// Running returns the lease and progress of a dispatch that runs at a worker of
// this node. ok is false if the dispatch is not here or not acknowledged.
func (s *Server) Running(id job.ID, dispatch uint32) (progress job.Progress, ok bool) {
	s.deliveries.mu.Lock()
	defer s.deliveries.mu.Unlock()
	d := s.deliveries.dispatches[job.DispatchID{Job: id, N: dispatch}]
	if d == nil || d.state != running && d.state != recalling {
		return job.Progress{}, false
	}
	progress = d.progress
	progress.Lease = d.leaseUntil
	return progress, true
}

// runtimeFields returns a job's runtime part, with the lease and progress of a
// running dispatch: from this node, or from view if the dispatch is at another.
func (q queries) runtimeFields(view *job.View) overhop.Fields {
	runtime := overhop.Fields{"attempts_so_far": view.Attempts, "last_error": orNil(view.Reason)}
	progress := view.Progress
	if here, ok := q.server.Running(view.ID, view.Dispatches); ok {
		progress = &here
	}
	if progress == nil {
		return runtime
	}

	runtime["lease_until"] = progress.Lease
	report := overhop.Fields{}
	if progress.Percent != nil {
		report["percent"] = *progress.Percent
	}
	if len(progress.Data.Data) > 0 {
		q.setValue(report, "data", progress.Data, progressDepth)
	}
	if len(report) > 0 {
		runtime["progress"] = report
	}
	return runtime
}

// recordDepth is how deep a value may be nested within a record, which is
// itself within the envelope, the payload and a list. The data of a progress is
// two levels deeper in the record than the payload.
const (
	recordDepth   = overhop.MaxDepth - 5
	progressDepth = recordDepth - 2
)

// payloadOf returns the job's body: params as JSON, any other value as MessagePack.
func payloadOf(view *job.View) job.Value {
	switch {
	case view.Spec == nil:
		return job.Value{}
	case len(view.Spec.Params) > 0:
		return job.Value{Data: view.Spec.Params}
	}
	return job.Value{Data: view.Spec.Payload, Msgpack: true}
}

// setValue sets the field called key of a message to a stored value: to what [valueOf]
// returns, or, if the client takes JSON and that is how the value is stored, under the
// key's name for it.
func (q queries) setValue(message overhop.Fields, key string, stored job.Value, levels int) {
	if q.json && !stored.Msgpack && len(stored.Data) > 0 && overhop.JSONFits(stored.Data, levels) {
		message[key+overhop.JSONSuffix] = stored.Data
		return
	}
	message[key] = valueOf(stored, levels)
}

// valueOf returns a stored value for a message to the client, or nil if there is
// none. A value that is nested deeper than the given number of levels, or that
// the protocol cannot represent, is returned as its bytes.
func valueOf(stored job.Value, levels int) any {
	if len(stored.Data) == 0 {
		return nil
	}
	if stored.Msgpack {
		if overhop.CheckDepth(stored.Data, levels) != nil {
			return stored.Data
		}
		return overhop.Raw(stored.Data)
	}
	converted, err := overhop.AppendFromJSON(nil, stored.Data, levels)
	if err != nil {
		return stored.Data
	}
	return overhop.Raw(converted)
}

// faultOf returns why the job or its last attempt failed, or nil. It says nothing of a job
// that runs or has completed, whose earlier failure is in the record's runtime only.
func (q queries) faultOf(view *job.View) any {
	fault := view.Fault
	if fault == nil || view.State == job.Active || view.State == job.Completed {
		return nil
	}
	shown := overhop.Fields{"message": fault.Message}
	if fault.Type != "" {
		shown["type"] = fault.Type
	}
	if fault.Code != "" {
		shown["code"] = fault.Code
	}
	if view.Cancellation != nil && view.Cancellation.Reason != "" {
		shown["reason"] = view.Cancellation.Reason
	}
	if len(fault.Details) > 0 && json.Valid(fault.Details) {
		q.setValue(shown, "details", job.Value{Data: fault.Details}, recordDepth)
	}
	return shown
}

// orNil returns v, or nil if it is the zero value.
func orNil[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}
