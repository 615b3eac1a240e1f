package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/yardmaster-dev/yardmaster/job"
)

const (
	serviceName    = "yardmaster"
	maxQueuedSpans = 8192            // default of OTEL_BSP_MAX_QUEUE_SIZE
	closeTimeout   = 3 * time.Second // for exporting the last spans
)

// Tracer creates a span for every dispatch. Its methods may be called concurrently
// and do not block, except Close.
type Tracer struct {
	node         string
	provider     *sdk.TracerProvider
	tracer       trace.Tracer
	limiter      *spanLimiter
	cancelExport context.CancelFunc // aborts an export

	mu   sync.Mutex
	open map[job.DispatchID]*span
}

// span is the span of a dispatch that is running, or has ended and is not settled
// yet.
type span struct {
	trace.Span
	traceContext map[string]string // passed to the runner
	started      time.Time
	ended        time.Time // zero while it runs
}

// Open returns the tracer that OpenTelemetry's environment variables ask for, nil
// if they ask for none. The error names the variable that is wrong and its
// permitted values. It is not an error if the collector does not answer.
func Open(ctx context.Context, node, version string, log *slog.Logger) (*Tracer, error) {
	s, err := readSettings(os.LookupEnv)
	if err != nil || s.endpoint == "" {
		return nil, err
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.Warn("tracing failed", "err", err) }))
	res, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", serviceName), attribute.String("service.version", version),
		attribute.String("service.instance.id", node),
	), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w; give key=value,key=value", err)
	}
	exporter, err := s.exporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("create the OTLP exporter: %w", err)
	}
	exportCtx, cancelExport := context.WithCancel(context.WithoutCancel(ctx))
	limiter := &spanLimiter{limit: maxQueuedSpans, log: log}
	if n, err := strconv.Atoi(os.Getenv("OTEL_BSP_MAX_QUEUE_SIZE")); err == nil && n > 0 {
		limiter.limit = int64(n)
	}
	limiter.SpanProcessor = sdk.NewBatchSpanProcessor(&limitedExporter{exporter, exportCtx, limiter}, sdk.WithMaxQueueSize(int(limiter.limit)))
	provider := sdk.NewTracerProvider(sdk.WithResource(res), sdk.WithSpanProcessor(limiter))
	log.Info("tracing enabled", "endpoint", s.endpoint, "grpc", s.grpc)
	return &Tracer{
		node: node, provider: provider, limiter: limiter, cancelExport: cancelExport, open: make(map[job.DispatchID]*span),
		tracer: provider.Tracer("yardmaster", trace.WithInstrumentationVersion(version)),
	}, nil
}

// Close ends all open spans and exports what it can within closeTimeout.
func (t *Tracer) Close() {
	t.mu.Lock()
	for k, s := range t.open {
		s.finish()
		delete(t.open, k)
	}
	t.mu.Unlock()
	timer := time.AfterFunc(closeTimeout, t.cancelExport)
	defer timer.Stop()
	defer t.cancelExport()
	if err := t.provider.Shutdown(context.Background()); err != nil {
		otel.Handle(fmt.Errorf("end tracing: %w", err))
	}
	t.limiter.reportLost("total since the last report, at shutdown")
}

// Begin creates the span of a dispatch that is about to start at a worker, and
// returns the trace context for it. It does not change traceContext. For a
// dispatch that has a span it returns that span's trace context.
func (t *Tracer) Begin(a *job.Assignment, traceContext map[string]string, worker string) map[string]string {
	k := a.DispatchID()
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.open[k]; s != nil {
		return s.traceContext
	}
	now := time.Now()
	ctx, started := t.tracer.Start(parent(traceContext), "yard.job", trace.WithTimestamp(now),
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(t.startAttributes(a, worker, now)...))
	s := &span{Span: started, traceContext: withParent(ctx, traceContext), started: now}
	if started.IsRecording() {
		t.open[k] = s
	}
	return s.traceContext
}

// Discard drops the span of a dispatch that did not start.
func (t *Tracer) Discard(id job.ID, n uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.open[job.DispatchID{Job: id, N: n}]; s != nil && s.ended.IsZero() {
		delete(t.open, job.DispatchID{Job: id, N: n})
	}
}

// Recalled records that a dispatch was asked to stop.
func (t *Tracer) Recalled(id job.ID, n uint32, reason job.RecallReason) {
	t.withSpan(id, n, func(s *span) {
		s.AddEvent("recall", trace.WithAttributes(attribute.String("yard.recall_reason", string(reason))))
	})
}

// Moved ends the span of a dispatch whose worker continues it on another node.
func (t *Tracer) Moved(id job.ID, n uint32) {
	t.withSpan(id, n, func(s *span) {
		s.SetAttributes(attribute.String("rrq.outcome", "moved"))
		s.finish()
		delete(t.open, job.DispatchID{Job: id, N: n})
	})
}

// Ended records how a dispatch ended. Its span stays open until the outcome is
// settled: the caller must then call the function that Ended returns, which ends the
// span and calls then. then may be nil, and so may the result if the dispatch has no
// span.
func (t *Tracer) Ended(o *job.Outcome, then func(job.Settled)) func(job.Settled) {
	traced := false
	t.withSpan(o.Job, o.N, func(s *span) {
		traced = true
		if s.ended.IsZero() {
			s.ended = time.Now()
			s.SetAttributes(endAttributes(o, s.ended.Sub(s.started))...)
			s.SetStatus(spanStatus(o))
		}
	})
	if !traced {
		return then
	}
	id, n := o.Job, o.N
	return func(settled job.Settled) {
		t.withSpan(id, n, func(s *span) {
			s.SetAttributes(settledAttributes(&settled, s.ended)...)
			s.finish()
			delete(t.open, job.DispatchID{Job: id, N: n})
		})
		if then != nil {
			then(settled)
		}
	}
}

// withSpan calls fn with a dispatch's span, if there is one, while holding t.mu.
func (t *Tracer) withSpan(id job.ID, n uint32, fn func(*span)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.open[job.DispatchID{Job: id, N: n}]; s != nil {
		fn(s)
	}
}

// finish ends the span at the time its dispatch ended, or now.
func (s *span) finish() {
	if s.ended.IsZero() {
		s.ended = time.Now()
	}
	s.End(trace.WithTimestamp(s.ended))
}

// settings are the values of OpenTelemetry's environment variables that are needed
// before its SDK starts. The SDK reads the others itself.
type settings struct {
	endpoint string // "": no tracing; without its password, because it is logged
	grpc     bool
}

// readSettings reads the environment. The error names the variable and its
// permitted values.
func readSettings(lookup func(string) (string, bool)) (s settings, err error) {
	get := func(name string) string { v, _ := lookup(name); return strings.TrimSpace(v) }
	if strings.EqualFold(get("OTEL_SDK_DISABLED"), "true") {
		return s, nil
	}
	switch exporter := get("OTEL_TRACES_EXPORTER"); exporter {
	case "", "otlp":
	case "none":
		return s, nil
	default:
		return s, fmt.Errorf(`OTEL_TRACES_EXPORTER is %q; use "otlp" or "none"`, exporter)
	}
	name := "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	if _, isSet := lookup(name); !isSet { // set but empty, it disables tracing
		name = "OTEL_EXPORTER_OTLP_ENDPOINT"
	}
	endpoint := get(name)
	if endpoint == "" {
		return s, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return s, fmt.Errorf("%s is %q; give the collector's URL, such as http://127.0.0.1:4318", name, endpoint)
	}
	name = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	if get(name) == "" {
		name = "OTEL_EXPORTER_OTLP_PROTOCOL"
	}
	switch protocol := get(name); protocol {
	case "", "http/protobuf":
	case "grpc":
		s.grpc = true
	default:
		return s, fmt.Errorf(`%s is %q; use "http/protobuf" or "grpc"`, name, protocol)
	}
	s.endpoint = u.Redacted()
	return s, nil
}

// exporter returns the OTLP exporter. It connects when it has something to export.
func (s settings) exporter(ctx context.Context) (sdk.SpanExporter, error) {
	if s.grpc {
		return otlptracegrpc.New(ctx)
	}
	return otlptracehttp.New(ctx)
}
