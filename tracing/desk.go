package tracing

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// desk stands between the spans that end and the exporter: it keeps the number
// of those on their way below a limit, so that none is dropped unseen, and
// swallows the exporter's errors, once a minute with a word to the log.
type desk struct {
	sdk.SpanProcessor // what gathers them
	limit             int64
	waiting           atomic.Int64 // ended and not yet sent or given up
	lost              atomic.Int64 // since the log was told
	toldAt            atomic.Int64 // Unix nanoseconds
	log               *slog.Logger
}

// tellEvery is the least time between two words about lost spans.
const tellEvery = time.Minute

// OnEnd takes an ended span, or drops it. It never waits.
func (d *desk) OnEnd(s sdk.ReadOnlySpan) {
	if !s.SpanContext().IsSampled() {
		return
	}
	if d.waiting.Add(1) > d.limit {
		d.waiting.Add(-1)
		d.lose(1, "too many wait to be sent")
		return
	}
	d.SpanProcessor.OnEnd(s)
}

// lose counts spans that nobody will see.
func (d *desk) lose(n int64, why string) {
	d.lost.Add(n)
	now := time.Now().UnixNano()
	last := d.toldAt.Load()
	if now-last < int64(tellEvery) || !d.toldAt.CompareAndSwap(last, now) {
		return
	}
	d.tell(why)
}

func (d *desk) tell(why string) {
	if n := d.lost.Swap(0); n > 0 {
		d.log.Warn("spans are lost", "spans", n, "reason", why)
	}
}

// sender is the exporter as the desk's processor sees it: it has no errors, and
// ends its present try when life does.
type sender struct {
	sdk.SpanExporter
	life context.Context
	desk *desk
}

// ExportSpans sends a batch or gives it up.
func (s *sender) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	err := s.SpanExporter.ExportSpans(ctx, spans)
	s.desk.waiting.Add(-int64(len(spans)))
	if err != nil {
		s.desk.lose(int64(len(spans)), err.Error())
	}
	return nil
}
