// Package tracing makes an OpenTelemetry span of every dispatch that runs on
// this node, and sends it by OTLP to where OpenTelemetry's own environment
// variables say. Without an endpoint there is no [Tracer], and nothing is done.
//
//	producer's span ──▶ yard.job (attempt 1) ──▶ the runner's own span
//	               └──▶ yard.job (attempt 2) ──▶ the runner's own span
//
// The parent of a span is what the producer's trace_context names; the runner
// or worker is given the same map with the span's traceparent in it. Whether a
// trace is sampled was decided by whoever began it.
//
// Nothing here waits for the collector: what it is too slow for is dropped,
// counted, and told once a minute.
package tracing
