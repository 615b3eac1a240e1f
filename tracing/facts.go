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

	"yardmaster/job"
)

// What a span says. The names that begin with "rrq." are those of RRQ's spans.

// maxText is the most of a fault's message that a span carries, in bytes.
const maxText = 1 << 10

// facts are what is known of a dispatch when it begins.
func (t *Tracer) facts(a *job.Assignment, worker string, now time.Time) []attribute.KeyValue {
	due := a.RunAt
	if due.Before(a.Accepted) {
		due = a.Accepted
	}
	facts := []attribute.KeyValue{
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
		facts = append(facts, attribute.String("rrq.runner", text(a.Key)))
	}
	return facts
}

// ending is what is known of a dispatch when it ends.
func ending(o *job.Outcome, took time.Duration) []attribute.KeyValue {
	said := []attribute.KeyValue{
		attribute.String("rrq.outcome", outcome(o)),
		attribute.Float64("rrq.duration_ms", milliseconds(took)),
	}
	if o.RetryAfter != nil {
		said = append(said, attribute.Float64("rrq.retry_delay_ms", milliseconds(*o.RetryAfter)))
	}
	if o.Fault == nil || o.Status == job.Success {
		return said
	}
	said = append(said, attribute.String("rrq.error_message", text(o.Fault.Message)))
	if o.Fault.Type != "" {
		said = append(said, attribute.String("rrq.error_type", text(o.Fault.Type)), attribute.String("error.type", text(o.Fault.Type)))
	}
	return said
}

// outcome is a status in RRQ's words, where RRQ has one.
func outcome(o *job.Outcome) string {
	switch {
	case o.Status != job.Error:
		return o.Status.String()
	case o.Final, o.Hopeless():
		return "fatal"
	case o.Fault != nil && o.Fault.Type == "transport":
		return "transport_error"
	}
	return o.Status.String()
}

// verdictOf is an outcome as a span's status: what nobody can be blamed for is
// no error.
func verdictOf(o *job.Outcome) (codes.Code, string) {
	switch o.Status {
	case job.Error, job.TimedOut, job.Lost:
		if o.Fault != nil {
			return codes.Error, text(o.Fault.Message)
		}
		return codes.Error, o.Status.String()
	}
	return codes.Unset, ""
}

// follow is what the yard made of the outcome.
func follow(s *job.Settled, ended time.Time) []attribute.KeyValue {
	if s.Stale {
		return []attribute.KeyValue{attribute.Bool("yard.stale", true)}
	}
	said := []attribute.KeyValue{attribute.String("yard.job_state", s.State.String())}
	if s.State == job.Delayed || s.State == job.Waiting {
		said = append(said, attribute.Float64("rrq.retry_delay_ms", milliseconds(max(s.RunAt.Sub(ended), 0))))
	}
	return said
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// text makes a string one that OTLP carries.
func text(s string) string {
	if len(s) > maxText {
		s = s[:maxText]
	}
	return strings.ToValidUTF8(s, "")
}

const traceparent = "traceparent"

var w3c propagation.TraceContext

// parent is the span that a trace context names, if it names one.
func parent(given map[string]string) context.Context {
	return w3c.Extract(context.Background(), carrier(given))
}

// handOn is given with the span of ctx as the parent of what follows.
func handOn(ctx context.Context, given map[string]string) map[string]string {
	own := carrier{}
	w3c.Inject(ctx, own)
	out := make(map[string]string, len(given)+1)
	for k, v := range given {
		if !strings.EqualFold(k, traceparent) {
			out[k] = v
		}
	}
	out[traceparent] = own[traceparent]
	return out
}

// carrier is a trace context whose keys may be written in any case.
type carrier map[string]string

// Get finds a key, the exact one before any other.
func (c carrier) Get(name string) string {
	if v, ok := c[name]; ok {
		return v
	}
	for _, k := range slices.Sorted(maps.Keys(c)) {
		if strings.EqualFold(k, name) {
			return c[k]
		}
	}
	return ""
}

// Set sets a key.
func (c carrier) Set(name, value string) { c[name] = value }

// Keys lists the keys.
func (c carrier) Keys() []string { return slices.Collect(maps.Keys(c)) }
