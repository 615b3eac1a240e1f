package tracing

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	sdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/test/testlog"
)

func TestSettings(t *testing.T) {
	for _, test := range []struct{ environment, endpoint, protocol, wrong string }{
		{environment: ""},
		{environment: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", endpoint: "http://c:4318"},
		{environment: "OTEL_EXPORTER_OTLP_ENDPOINT=https://me:secret@c", endpoint: "https://me:xxxxx@c"},
		{environment: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://c/x OTEL_EXPORTER_OTLP_ENDPOINT=http://d", endpoint: "https://c/x"},
		{environment: "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT= OTEL_EXPORTER_OTLP_ENDPOINT=http://d"},
		{environment: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_SDK_DISABLED=TRUE"},
		{environment: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_TRACES_EXPORTER=none"},
		{environment: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_EXPORTER_OTLP_PROTOCOL=grpc", endpoint: "http://c", protocol: "grpc"},
		{environment: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", endpoint: "http://c"},
		{environment: "OTEL_EXPORTER_OTLP_ENDPOINT=http://c OTEL_EXPORTER_OTLP_PROTOCOL=http/json", wrong: `OTEL_EXPORTER_OTLP_PROTOCOL is "http/json"; use "http/protobuf" or "grpc"`},
		{environment: "OTEL_EXPORTER_OTLP_ENDPOINT=c:4318", wrong: `OTEL_EXPORTER_OTLP_ENDPOINT is "c:4318"; give the collector's URL`},
		{environment: "OTEL_TRACES_EXPORTER=zipkin", wrong: `OTEL_TRACES_EXPORTER is "zipkin"; use "otlp" or "none"`},
	} {
		given := map[string]string{}
		for variable := range strings.FieldsSeq(test.environment) {
			name, value, _ := strings.Cut(variable, "=")
			given[name] = value
		}
		s, err := readSettings(func(name string) (string, bool) { v, ok := given[name]; return v, ok })
		if test.wrong != "" {
			if err == nil || !strings.HasPrefix(err.Error(), test.wrong) {
				t.Errorf("%s: error is %v, want %s", test.environment, err, test.wrong)
			}
			continue
		}
		if err != nil || s.endpoint != test.endpoint || s.grpc != (test.protocol == "grpc") {
			t.Errorf("%s: %+v, %v", test.environment, s, err)
		}
	}
}

func TestOpen_Off(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	if tracer, err := Open(t.Context(), "n", "v", slog.New(slog.DiscardHandler)); tracer != nil || err != nil {
		t.Errorf("%v, %v", tracer, err)
	}
}

func TestLookupFold(t *testing.T) {
	given := map[string]string{"TRACEPARENT": "upper", "Traceparent": "title", "other": "o"}
	if got := lookupFold(given, traceparent); got != "upper" {
		t.Errorf("with two spellings, lookupFold returned %q", got)
	}
	given[traceparent] = "exact"
	if got := lookupFold(given, traceparent); got != "exact" {
		t.Errorf("lookupFold returned %q, not the exact match", got)
	}
}

// stuckExporter is an exporter that blocks until it is released, and then fails.
type stuckExporter struct {
	entered chan struct{}
	once    sync.Once
}

func (s *stuckExporter) ExportSpans(ctx context.Context, _ []sdk.ReadOnlySpan) error {
	s.once.Do(func() { close(s.entered) })
	<-ctx.Done()
	return errors.New("collector hangs")
}

func (s *stuckExporter) Shutdown(context.Context) error { return nil }

// TestLimiter_DropsSpans checks that a blocked collector blocks nothing else, and
// that dropped spans are logged in one line, and in one more at the end.
func TestLimiter_DropsSpans(t *testing.T) {
	log, lines := testlog.NewRecorder(t)
	exportCtx, cancelExport := context.WithCancel(context.Background())
	limiter := &spanLimiter{limit: 8, log: log}
	exporter := &stuckExporter{entered: make(chan struct{})}
	limiter.SpanProcessor = sdk.NewBatchSpanProcessor(&limitedExporter{exporter, exportCtx, limiter}, sdk.WithMaxQueueSize(8), sdk.WithMaxExportBatchSize(2))
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(limiter))
	tracer := &Tracer{node: "n", provider: provider, tracer: provider.Tracer("t"), limiter: limiter, cancelExport: cancelExport, open: map[job.DispatchID]*span{}}
	run := func(n uint32) {
		tracer.Begin(&job.Assignment{N: n}, nil, "w")
		tracer.Ended(&job.Outcome{N: n, Status: job.Success}, nil)(job.Settled{State: job.Completed})
	}
	for n := range uint32(2) {
		run(n + 1)
	}
	<-exporter.entered
	for n := range uint32(1000) {
		run(n + 10)
	}
	if waiting := limiter.waiting.Load(); waiting != 8 {
		t.Errorf("%d spans wait, want 8", waiting)
	}
	if logged := lines.Messages(slog.LevelWarn); len(logged) != 1 || limiter.lost.Load() != 993 {
		t.Errorf("logged %q, %d not logged yet; want one line and 993", logged, limiter.lost.Load())
	}
	cancelExport()
	tracer.Close()
	if logged := lines.Messages(slog.LevelWarn); len(logged) != 2 || limiter.lost.Load() != 0 || limiter.waiting.Load() != 0 {
		t.Errorf("at the end logged %q; %d not logged, %d waiting", logged, limiter.lost.Load(), limiter.waiting.Load())
	}
	if len(tracer.open) != 0 {
		t.Errorf("%d spans are still open", len(tracer.open))
	}
}

// TestOutcomeAttributes checks the names of outcomes and which of them are errors.
func TestOutcomeAttributes(t *testing.T) {
	for _, test := range []struct {
		o     job.Outcome
		word  string
		error bool
	}{
		{job.Outcome{Status: job.Success}, "success", false},
		{job.Outcome{Status: job.Retry, Fault: &job.Fault{Message: "m"}}, "retry", false},
		{job.Outcome{Status: job.TimedOut}, "timeout", true},
		{job.Outcome{Status: job.Error}, "error", true},
		{job.Outcome{Status: job.Error, Fault: &job.Fault{Type: job.HandlerNotFound}}, "fatal", true},
		{job.Outcome{Status: job.Error, Fault: &job.Fault{Type: "transport"}}, "transport_error", true},
		{job.Outcome{Status: job.Lost}, "lost", true},
		{job.Outcome{Status: job.Interrupted}, "interrupted", false},
		{job.Outcome{Status: job.RunCancelled}, "cancelled", false},
	} {
		code, _ := spanStatus(&test.o)
		if word := outcome(&test.o); word != test.word || (code != 0) != test.error {
			t.Errorf("%+v is %q and %v", test.o, word, code)
		}
	}
	if got := text("a\xff" + strings.Repeat("é", maxTextBytes)); len(got) > maxTextBytes || !strings.HasPrefix(got, "aé") {
		t.Errorf("text of %d bytes: %.5q", len(got), got)
	}
}
