package tracing

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// spanLimiter is a span processor in front of the batch processor. It limits the
// number of ended spans that are not exported yet, so that the batch processor
// never drops any uncounted. It also logs export errors, at most once per
// reportInterval.
type spanLimiter struct {
	sdk.SpanProcessor // the batch processor
	limit             int64
	waiting           atomic.Int64 // spans that ended and are neither exported nor dropped
	lost              atomic.Int64 // spans dropped since the last log line
	reportedAt        atomic.Int64 // Unix nanoseconds
	log               *slog.Logger
}

// reportInterval is the minimum time between two log lines about dropped spans.
const reportInterval = time.Minute

// OnEnd queues an ended span or drops it. It does not block.
func (l *spanLimiter) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if l.waiting.Add(1) > l.limit {
		l.waiting.Add(-1)
		l.drop(1, "too many spans wait to be exported")
		return
	}
	l.SpanProcessor.OnEnd(s)
}

// drop counts n dropped spans and logs them if the last log line is old enough.
func (l *spanLimiter) drop(n int64, reason string) {
	l.lost.Add(n)
	now := time.Now().UnixNano()
	last := l.reportedAt.Load()
	if now-last < int64(reportInterval) || !l.reportedAt.CompareAndSwap(last, now) {
		return
	}
	l.reportLost(reason)
}

// reportLost logs the number of spans dropped since the last log line, if any.
func (l *spanLimiter) reportLost(reason string) {
	if n := l.lost.Swap(0); n > 0 {
		l.log.Warn("spans dropped", "count", n, "reason", reason)
	}
}

// limitedExporter is the exporter as the batch processor sees it. It reports
// errors to the limiter instead of returning them, and aborts an export when ctx
// ends.
type limitedExporter struct {
	sdk.SpanExporter
	ctx     context.Context
	limiter *spanLimiter
}

// ExportSpans exports spans, or drops them after an error. It always returns nil.
func (s *limitedExporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	err := s.SpanExporter.ExportSpans(ctx, spans)
	s.limiter.waiting.Add(-int64(len(spans)))
	if err != nil {
		s.limiter.drop(int64(len(spans)), err.Error())
	}
	return nil
}
