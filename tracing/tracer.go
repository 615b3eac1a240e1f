package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"yardmaster/job"
)

const (
	serviceName = "yardmaster"
	maxWaiting  = 8192            // spans, unless OTEL_BSP_MAX_QUEUE_SIZE says otherwise
	closeWithin = 3 * time.Second // for the last spans
)

// Tracer makes a span of every dispatch. Its methods may be called from any
// goroutine and never wait.
type Tracer struct {
	node     string
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	desk     *desk
	hangUp   context.CancelFunc // ends what the exporter is trying

	mu   sync.Mutex
	open map[key]*span
}

// key names a dispatch.
type key struct {
	id job.ID
	n  uint32
}

// span is one dispatch under way, or ended and not yet settled.
type span struct {
	trace.Span
	given map[string]string // what the runner is told
	began time.Time
	ended time.Time // zero: it runs
}

// Open makes the tracer of a node that OpenTelemetry's environment variables
// ask for, nil if they ask for none. The error says which of them is wrong and
// what it may be. A collector that does not answer is no error.
func Open(ctx context.Context, node, version string, log *slog.Logger) (*Tracer, error) {
	s, err := read(os.LookupEnv)
	if err != nil || s.endpoint == "" {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("tracing is not as it should be", "error", err) }))
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", serviceName), attribute.String("service.version", version),
		attribute.String("service.instance.id", node),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w; give key=value,key=value", err)
	}
	exporter, err := s.exporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("make the OTLP exporter: %w", err)
	}
	life, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	d := &desk{limit: maxWaiting, log: log}
	if n, err := strconv.Atoi(os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE")); err == nil && n > 0 {
		d.limit = int64(n)
	}
	d.SpanProcessor = sdk.NewBatchSpanProcessor(&sender{exporter, life, d}, sdk.WithMaxQueueSize(int(d.limit)))
	provider := sdk.NewTracerProvider(sdk.WithResource(about), sdk.WithSpanProcessor(d))
	log.Info("runs are traced", "endpoint", s.endpoint, "grpc", s.grpc)
	return &Tracer{
		node: node, provider: provider, desk: d, hangUp: hangUp, open: make(map[key]*span),
		tracer: provider.Tracer("yardmaster", trace.WithInstrumentationVersion(version)),
	}, nil
}

// Close ends what is open and sends what it can within three seconds.
func (t *Tracer) Close() {
	t.mu.Lock()
	for k, s := range t.open {
		s.finish()
		delete(t.open, k)
	}
	t.mu.Unlock()
	timer := time.AfterFunc(closeWithin, t.hangUp)
	defer timer.Stop()
	defer t.hangUp()
	if err := t.provider.Shutdown(context.Background()); err != nil {
		otel.Handle(fmt.Errorf("end tracing: %w", err))
	}
	t.desk.tell("all since the last word, until the node stopped")
}

// Begin makes the span of a dispatch that is about to start at the worker of
// that id, and gives the trace context to hand on. The producer's map is left
// as it is. A dispatch that has a span already gets the same one.
func (t *Tracer) Begin(a *job.Assignment, given map[string]string, worker string) map[string]string {
	k := key{a.Job, a.N}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.open[k]; s != nil {
		return s.given
	}
	now := time.Now()
	ctx, made := t.tracer.Start(parent(given), "yard.job", trace.WithTimestamp(now),
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(t.facts(a, worker, now)...))
	s := &span{Span: made, given: handOn(ctx, given), began: now}
	if made.IsRecording() {
		t.open[k] = s
	}
	return s.given
}

// Forget drops the span of a dispatch that did not start.
func (t *Tracer) Forget(id job.ID, n uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.open[key{id, n}]; s != nil && s.ended.IsZero() {
		delete(t.open, key{id, n})
	}
}

// Recalled notes that a dispatch was asked to stop.
func (t *Tracer) Recalled(id job.ID, n uint32, why job.RecallReason) {
	t.with(id, n, func(s *span) {
		s.AddEvent("recall", trace.WithAttributes(attribute.String("yard.recall_reason", string(why))))
	})
}

// Moved ends the span of a dispatch whose worker went on with it at another
// node.
func (t *Tracer) Moved(id job.ID, n uint32) {
	t.with(id, n, func(s *span) {
		s.SetAttributes(attribute.String("rrq.outcome", "moved"))
		s.finish()
		delete(t.open, key{id, n})
	})
}

// Ended notes how a dispatch ended. Its span ends when the outcome is settled:
// then wraps what is to be called for that, which may be nil.
func (t *Tracer) Ended(o *job.Outcome, then func(job.Settled)) func(job.Settled) {
	known := false
	t.with(o.Job, o.N, func(s *span) {
		known = true
		if s.ended.IsZero() {
			s.ended = time.Now()
			s.SetAttributes(ending(o, s.ended.Sub(s.began))...)
			s.SetStatus(verdictOf(o))
		}
	})
	if !known {
		return then
	}
	id, n := o.Job, o.N
	return func(settled job.Settled) {
		t.with(id, n, func(s *span) {
			s.SetAttributes(follow(&settled, s.ended)...)
			s.finish()
			delete(t.open, key{id, n})
		})
		if then != nil {
			then(settled)
		}
	}
}

func (t *Tracer) with(id job.ID, n uint32, do func(*span)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.open[key{id, n}]; s != nil {
		do(s)
	}
}

// finish ends the span when its dispatch ended, or now.
func (s *span) finish() {
	if s.ended.IsZero() {
		s.ended = time.Now()
	}
	s.End(trace.WithTimestamp(s.ended))
}
