package api

import (
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// progressOf returns the last report about a job, or nil if it is empty.
func progressOf(r *job.Progress) *Progress {
	switch {
	case r.Percent == nil && len(r.Data.Data) == 0:
		return nil
	case r.Data.Msgpack:
		return &Progress{Percent: r.Percent, DataMsgpack: r.Data.Data}
	}
	return &Progress{Percent: r.Percent, Data: r.Data.Data}
}

// limitsOf returns the limits that a job names, nil if it names none.
func limitsOf(uses []job.LimitUse) map[string]string {
	if len(uses) == 0 {
		return nil
	}
	limits := make(map[string]string, len(uses))
	for _, use := range uses {
		limits[use.Limit] = use.Key
	}
	return limits
}

// JobOf returns v as the API shows it. Larger bodies and results than MaxShownBytes are
// left out.
func JobOf(v *job.View) Job {
	j := Job{
		ID: v.ID, Key: v.Key, JID: v.Queue + ":" + v.ID.String(), Queue: v.Queue, State: v.State.String(),
		Function: v.Function, PayloadGone: v.PayloadGone, PayloadUnread: v.Unread, Created: v.Created, RunAt: v.RunAt,
		Started: timePtr(v.Started), Ended: timePtr(v.Ended), Priority: v.Priority, Attempts: v.Attempts,
		MaxAttempts: v.MaxAttempts, Dispatches: v.Dispatches, Losses: v.Losses,
		TimeoutMS: v.Timeout.Milliseconds(), RetryInterval: v.RetryInterval.Milliseconds(), RetryOnTimeout: v.RetryOnTimeout,
		Expires: timePtr(v.Expires), LimitKey: v.LimitKey, Limits: limitsOf(v.Limits),
		Node: v.Node, Worker: v.Worker, Cancellation: v.Cancellation,
		ResultBytes: v.ResultSize, ResultGone: resultGone(v.ResultGone), ResultReason: v.ResultReason, ResultTTL: v.ResultTTL.Milliseconds(),
		Lane: v.Position.Lane, Seq: v.Position.Seq, Index: v.Position.Index, DeadLetter: v.DeadLetter, LetterGone: v.LetterGone, Forgotten: v.Forgotten,
	}
	if v.State != job.Active && v.State != job.Completed { // there an earlier failure explains nothing
		j.Reason, j.Error = v.Reason, v.Fault
	}
	if v.Spec != nil {
		j.Trace, j.Tags, j.Meta = v.Spec.Trace, v.Spec.Tags, v.Spec.Meta
		if j.PayloadBytes = len(v.Spec.Params) + len(v.Spec.Payload); j.PayloadBytes <= MaxShownBytes {
			j.Params, j.Payload, j.PayloadBytes = v.Spec.Params, v.Spec.Payload, 0
		}
	}
	if l := v.Labels; l != nil {
		j.Tags, j.Meta, j.Indexed = l.Tags, labelMap(l.Meta), labelMap(l.Params)
	}
	switch {
	case len(v.Result.Data) > MaxShownBytes:
	case v.Result.Msgpack:
		j.ResultMsgpack = v.Result.Data
	default:
		j.Result = v.Result.Data
	}
	if r := v.Progress; r != nil {
		j.Lease, j.Progress = timePtr(r.Lease), progressOf(r)
	}
	return j
}

// labelMap returns labels by their names, nil for none.
func labelMap(labels []job.Label) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	m := make(map[string]string, len(labels))
	for _, l := range labels {
		m[l.Name] = l.Value
	}
	return m
}

// ListedJobOf returns v as it is in a [JobList]: without its trace context, and with at most
// MaxListedBytes of params or payload.
func ListedJobOf(v *job.View) Job {
	j := JobOf(v)
	j.Trace = nil
	if v.Spec == nil {
		return j
	}
	size := len(v.Spec.Params) + len(v.Spec.Payload)
	if v.Spec.Blob != nil {
		size = int(v.Spec.Blob.Size)
	}
	if size > MaxListedBytes {
		j.Params, j.Payload, j.PayloadBytes = nil, nil, size
		j.ParamsStart = strings.ToValidUTF8(string(v.Spec.Params[:min(len(v.Spec.Params), MaxListedBytes)]), "")
	}
	return j
}

// MaxShownBytes is the largest body and the largest result in the description of a job,
// in bytes: both, one of them in base64, fit a message of NATS. Endpoints of their own
// return larger ones.
const MaxShownBytes = 600 << 10

// resultGone returns why a result is gone as the API names it.
func resultGone(reason job.ResultGone) string {
	if reason == "" {
		return ""
	}
	return "result_" + string(reason)
}

// timePtr returns a pointer to t, or nil for the zero time.
func timePtr(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
