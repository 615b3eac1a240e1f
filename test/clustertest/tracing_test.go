package clustertest_test

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/test/clustertest"
)

// fakeCollector is an OpenTelemetry collector that records what it receives.
type fakeCollector struct {
	server *httptest.Server

	mu      sync.Mutex
	spans   []*spans.Span
	about   map[string]string // attributes of the last resource
	headers http.Header
	bad     error
}

func newOTLP(t *testing.T) *fakeCollector {
	o := &fakeCollector{}
	o.server = httptest.NewServer(o)
	t.Cleanup(o.server.Close)
	return o
}

func (o *fakeCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(r.Body) // an error shows below
	}
	data, err := io.ReadAll(body)
	var sent collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(data, &sent)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil || r.URL.Path != "/v1/traces" {
		o.bad = fmt.Errorf("%s: %w", r.URL.Path, err)
	}
	o.headers = r.Header
	for _, resource := range sent.ResourceSpans {
		o.about = attributes(resource.Resource.Attributes)
		for _, scope := range resource.ScopeSpans {
			o.spans = append(o.spans, scope.Spans...)
		}
	}
}

func attributes(attributes []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range attributes {
		switch v := kv.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			m[kv.Key] = v.StringValue
		case *common.AnyValue_IntValue:
			m[kv.Key] = fmt.Sprint(v.IntValue)
		default:
			m[kv.Key] = kv.Value.String()
		}
	}
	return m
}

// of waits until there are n spans of a job, and returns them in the order of the
// dispatches.
func (o *fakeCollector) of(t *testing.T, cl *clustertest.Cluster, id string, n int) (found []*spans.Span) {
	t.Helper()
	cl.Eventually("the collector has the spans", func() error {
		found = nil
		o.mu.Lock()
		defer o.mu.Unlock()
		for dispatch := 1; dispatch <= n; dispatch++ {
			for _, s := range o.spans {
				if f := attributes(s.Attributes); f["rrq.job_id"] == id && f["yard.dispatch"] == fmt.Sprint(dispatch) {
					found = append(found, s)
				}
			}
		}
		if len(found) != n || o.bad != nil {
			return fmt.Errorf("%d of %d, %v", len(found), n, o.bad)
		}
		return nil
	})
	return found
}

const (
	traceID  = "4bf92f3577b34da6a3ce929d0e0e4736"
	parentID = "00f067aa0ba902b7"
)

// enqueueTraced enqueues a job with a producer's trace context.
func enqueueTraced(t *testing.T, m *clustertest.Member, queue, function string, trace map[string]string) string {
	t.Helper()
	spec := map[string]any{"params": map[string]any{}}
	if function != "" {
		spec["function"] = function
	}
	if trace != nil {
		spec["trace_context"] = trace
	}
	body, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return m.Enqueue(t, queue, string(body)).String()
}

func runEcho(t *testing.T, m *clustertest.Member, function string, trace map[string]string) (string, echoResult) {
	t.Helper()
	id := enqueueTraced(t, m, "traced", function, trace)
	j := m.WaitOutcome(t, id)
	got, err := parseEcho(j.Result)
	if err != nil {
		t.Fatalf("%v: %+v", err, j)
	}
	return id, got
}

func want(t *testing.T, facts map[string]string, wanted map[string]string) {
	t.Helper()
	for k, v := range wanted {
		if facts[k] != v {
			t.Errorf("%s is %q, want %q", k, facts[k], v)
		}
	}
}

// TestTracing restarts a node with different collectors.
func TestTracing(t *testing.T) {
	if testing.Short() {
		t.Skip("starts nodes")
	}
	o := newOTLP(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", o.server.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=yard")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	cl := clustertest.Start(t, 1, withEchoRunner(4))
	cl.Members[0].AddQueue(t, "traced", 0)
	spansExported(t, cl, o)
	t.Run("Off", func(t *testing.T) { tracingDisabled(t, cl) })
	t.Run("DeadCollector", func(t *testing.T) { collectorDown(t, cl) })
}

// spansExported checks the spans that the collector receives, and the trace contexts that
// runners and workers get.
func spansExported(t *testing.T, cl *clustertest.Cluster, o *fakeCollector) {
	m := cl.Members[0]
	t.Run("Child", func(t *testing.T) {
		given := map[string]string{"TraceParent": "00-" + traceID + "-" + parentID + "-01", "tracestate": "a=1", "tenant": "x"}
		id, got := runEcho(t, m, "demo#trace", given)
		s := o.of(t, cl, id, 1)[0]
		if hex.EncodeToString(s.TraceId) != traceID || hex.EncodeToString(s.ParentSpanId) != parentID || s.TraceState != "a=1" {
			t.Errorf("span is %v", s)
		}
		if s.Name != "yard.job" || s.Kind != spans.Span_SPAN_KIND_CONSUMER || s.Status.GetCode() == spans.Status_STATUS_CODE_ERROR {
			t.Errorf("span is %v", s)
		}
		told := map[string]string{"traceparent": "00-" + traceID + "-" + hex.EncodeToString(s.SpanId) + "-01", "tracestate": "a=1", "tenant": "x"}
		if !maps.Equal(got.Trace, told) {
			t.Errorf("the runner got %v, want %v", got.Trace, told)
		}
		want(t, attributes(s.Attributes), map[string]string{
			"rrq.function": "demo#trace", "rrq.queue": "traced", "rrq.attempt": "1", "rrq.worker_id": got.Worker, "rrq.outcome": "success",
			"messaging.destination.name": "traced", "yard.request_id": id + "#1", "yard.node": "n1", "yard.job_state": "completed",
		})
		want(t, o.about, map[string]string{"service.name": "yardmaster", "service.instance.id": "n1", "deployment.environment": "test"})
		if got := o.headers.Get("X-Tenant"); got != "yard" {
			t.Errorf("the collector's header is %q", got)
		}
	})
	t.Run("Root", func(t *testing.T) {
		id, got := runEcho(t, m, "demo#trace", nil)
		s := o.of(t, cl, id, 1)[0]
		if want := fmt.Sprintf("00-%x-%x-01", s.TraceId, s.SpanId); len(s.ParentSpanId) != 0 || got.Trace["traceparent"] != want {
			t.Errorf("the runner got %v, want %s; parent %x", got.Trace, want, s.ParentSpanId)
		}
	})
	t.Run("Retries", func(t *testing.T) {
		id, _ := runEcho(t, m, "demo#again", map[string]string{"traceparent": "00-" + traceID + "-" + parentID + "-01"})
		for i, s := range o.of(t, cl, id, 3) {
			f := attributes(s.Attributes)
			want(t, f, map[string]string{"rrq.attempt": fmt.Sprint(i + 1), "rrq.outcome": []string{"retry", "retry", "success"}[i]})
			if hex.EncodeToString(s.ParentSpanId) != parentID || (f["rrq.retry_delay_ms"] == "") != (i == 2) {
				t.Errorf("span of attempt %d is %v", i+1, s)
			}
		}
	})
	t.Run("Failure", func(t *testing.T) {
		id := enqueueTraced(t, m, "traced", "demo#never", nil)
		m.WaitOutcome(t, id)
		s := o.of(t, cl, id, 3)[2]
		want(t, attributes(s.Attributes), map[string]string{"rrq.outcome": "error", "rrq.error_message": "no luck", "rrq.error_type": "luck", "yard.job_state": "failed"})
		if s.Status.GetCode() != spans.Status_STATUS_CODE_ERROR || s.Status.GetMessage() != "no luck" {
			t.Errorf("status is %v", s.Status)
		}
	})
	t.Run("Unsampled", func(t *testing.T) {
		id, got := runEcho(t, m, "demo#trace", map[string]string{"traceparent": "00-" + traceID + "-" + parentID + "-00"})
		p := got.Trace["traceparent"]
		if !strings.HasPrefix(p, "00-"+traceID+"-") || !strings.HasSuffix(p, "-00") {
			t.Errorf("the runner got %q", p)
		}
		after, _ := runEcho(t, m, "demo#trace", nil)
		o.of(t, cl, after, 1)
		o.of(t, cl, id, 0)
	})
	t.Run("Worker", func(t *testing.T) {
		m.AddQueue(t, "overhop", 0)
		seen := make(chan overhop.Quest, 1)
		m.Worker(t, "overhop", 1, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) { seen <- *q; return nil, nil })
		id := enqueueTraced(t, m, "overhop", "", map[string]string{"traceparent": "00-" + traceID + "-" + parentID + "-01"})
		m.WaitOutcome(t, id)
		s := o.of(t, cl, id, 1)[0]
		q := <-seen
		if want := fmt.Sprintf("00-%s-%x-01", traceID, s.SpanId); q.Trace["traceparent"] != want {
			t.Errorf("the worker got %v, want %s", q.Trace, want)
		}
	})
}

// tracingDisabled checks that the producer's trace context arrives unchanged, and that the
// collector receives nothing.
func tracingDisabled(t *testing.T, cl *clustertest.Cluster) {
	m := cl.Members[0]
	given := map[string]string{"TraceParent": "00-" + traceID + "-" + parentID + "-01", "x": "y"}
	for _, off := range []string{"OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=none", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="} {
		t.Run(off, func(t *testing.T) {
			o := newOTLP(t)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", o.server.URL)
			name, value, _ := strings.Cut(off, "=")
			t.Setenv(name, value)
			m.Restart()
			cl.WaitReady()
			if _, got := runEcho(t, m, "demo#trace", given); !maps.Equal(got.Trace, given) {
				t.Errorf("the runner got %v, want %v", got.Trace, given)
			}
			m.Stop() // sends pending spans
			if o.headers != nil {
				t.Error("the collector has received spans")
			}
		})
	}
}

// collectorDown checks that jobs run and the node stops although the collector does not
// answer.
func collectorDown(t *testing.T, cl *clustertest.Cluster) {
	m := cl.Members[0]
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, endpoint := range map[string]string{"silent": "http://" + silent.Addr().String(), "gone": "http://127.0.0.1:1"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
			t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
			t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
			m.Restart()
			cl.WaitReady()
			m.AddQueue(t, name, 0)
			for range 20 {
				enqueueTraced(t, m, name, "demo#trace", nil)
			}
			cl.Eventually("all have run", func() error { return m.CheckCount(name, "completed", 20) })
			began := time.Now()
			m.Stop() // fails the test itself if it takes too long
			t.Logf("stopped within %s", time.Since(began).Round(time.Millisecond))
		})
	}
}
