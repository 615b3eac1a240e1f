// Package tracing creates an OpenTelemetry span for every dispatch that runs on
// this node, and exports it by OTLP as OpenTelemetry's standard environment
// variables say. Without an endpoint there is no [Tracer], and nothing is traced.
//
//	producer's span ──▶ yard.job (attempt 1) ──▶ the runner's own span
//	               └──▶ yard.job (attempt 2) ──▶ the runner's own span
//
// The parent of a span is the one in the producer's trace_context. The runner or
// worker gets the same map with this span's traceparent. The producer's sampling
// decision applies.
//
// Nothing here waits for the collector: spans that it is too slow for are dropped,
// counted, and reported in the log once a minute.
package tracing
