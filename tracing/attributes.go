package tracing

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Attributes of a span. Names that begin with "rrq." are those that RRQ uses.

// maxTextBytes is the maximum length of a string attribute in bytes.
const maxTextBytes = 1 << 10

// startAttributes returns the attributes of a dispatch that starts at a worker now.
func (t *Tracer) startAttributes(a *job.Assignment, worker string, now time.Time) []attribute.KeyValue {
	due := a.RunAt
	if due.Before(a.Accepted) {
		due = a.Accepted
	}
	attrs := []attribute.KeyValue{
		attribute.String("rrq.job_id", a.Job.String()),
		attribute.String("rrq.function", text(a.Function)),
		attribute.String("rrq.queue", a.Queue),
		attribute.Int64("rrq.attempt", int64(a.Attempt)),
		attribute.String("rrq.worker_id", text(worker)),
		attribute.Float64("rrq.queue_wait_ms", milliseconds(max(now.Sub(due), 0))),
		attribute.String("messaging.system", "yardmaster"),
		attribute.String("messaging.operation.name", "process"),
		attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", a.Queue),
		attribute.String("messaging.message.id", a.Job.String()),
		attribute.String("yard.node", t.node),
		attribute.String("yard.request_id", a.RequestID()),
		attribute.Int64("yard.dispatch", int64(a.N)),
		attribute.Bool("yard.redelivered", a.Redelivered),
	}
	if a.Kind == job.RRQ {
		attrs = append(attrs, attribute.String("rrq.runner", text(a.Key)))
	}
	return attrs
}

// endAttributes returns the attributes of a dispatch that has ended after a time.
func endAttributes(o *job.Outcome, took time.Duration) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		attribute.String("rrq.outcome", outcome(o)),
		attribute.Float64("rrq.duration_ms", milliseconds(took)),
	}
	if o.RetryAfter != nil {
		attrs = append(attrs, attribute.Float64("rrq.retry_delay_ms", milliseconds(*o.RetryAfter)))
	}
	if o.Fault == nil || o.Status == job.Success {
		return attrs
	}
	attrs = append(attrs, attribute.String("rrq.error_message", text(o.Fault.Message)))
	if o.Fault.Type != "" {
		attrs = append(attrs, attribute.String("rrq.error_type", text(o.Fault.Type)), attribute.String("error.type", text(o.Fault.Type)))
	}
	return attrs
}

// outcome returns RRQ's name for an outcome, or the status where RRQ has none.
func outcome(o *job.Outcome) string {
	switch {
	case o.Status != job.Error:
		return o.Status.String()
	case o.Final, o.Permanent():
		return "fatal"
	case o.Fault != nil && o.Fault.Type == "transport":
		return "transport_error"
	}
	return o.Status.String()
}

// spanStatus returns the span status of an outcome. Outcomes that are not caused
// by the job or its worker, such as a cancellation, are not errors.
func spanStatus(o *job.Outcome) (codes.Code, string) {
	switch o.Status {
	case job.Error, job.TimedOut, job.Lost:
		if o.Fault != nil {
			return codes.Error, text(o.Fault.Message)
		}
		return codes.Error, o.Status.String()
	}
	return codes.Unset, ""
}

// settledAttributes returns the attributes of a dispatch that ended at a time and was
// then settled: the job's next state, and when it is tried again. An outcome that came
// too late has only the attribute yard.stale.
func settledAttributes(s *job.Settled, ended time.Time) []attribute.KeyValue {
	if s.Stale {
		return []attribute.KeyValue{attribute.Bool("yard.stale", true)}
	}
	attrs := []attribute.KeyValue{attribute.String("yard.job_state", s.State.String())}
	if s.State == job.Delayed || s.State == job.Waiting {
		attrs = append(attrs, attribute.Float64("rrq.retry_delay_ms", milliseconds(max(s.RunAt.Sub(ended), 0))))
	}
	return attrs
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// text returns s as valid UTF-8 of at most maxTextBytes.
func text(s string) string {
	if len(s) > maxTextBytes {
		s = s[:maxTextBytes]
	}
	return strings.ToValidUTF8(s, "")
}

// The keys of a trace context, in the W3C's format.
const (
	traceparent = "traceparent"
	tracestate  = "tracestate"
)

var w3c propagation.TraceContext

// parent returns a context with the remote span in traceContext, if there is one.
func parent(traceContext map[string]string) context.Context {
	return w3c.Extract(context.Background(), propagation.MapCarrier{
		traceparent: lookupFold(traceContext, traceparent), tracestate: lookupFold(traceContext, tracestate),
	})
}

// withParent returns a copy of traceContext with the span of ctx as the parent: it
// replaces the key traceparent, in any case, and keeps all others.
func withParent(ctx context.Context, traceContext map[string]string) map[string]string {
	injected := propagation.MapCarrier{}
	w3c.Inject(ctx, injected)
	out := make(map[string]string, len(traceContext)+1)
	for k, v := range traceContext {
		if !strings.EqualFold(k, traceparent) {
			out[k] = v
		}
	}
	out[traceparent] = injected[traceparent]
	return out
}

// lookupFold returns the value of a key of a trace context, whose keys may have any case; an
// exact match takes precedence. It returns "" if there is no such key.
func lookupFold(traceContext map[string]string, key string) string {
	if value, ok := traceContext[key]; ok {
		return value
	}
	for _, name := range slices.Sorted(maps.Keys(traceContext)) {
		if strings.EqualFold(name, key) {
			return traceContext[name]
		}
	}
	return ""
}
