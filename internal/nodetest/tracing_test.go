package nodetest_test

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

	"yardmaster/edge/overhop"
	"yardmaster/internal/nodetest"
)

// otlp is a collector that keeps what it is sent.
type otlp struct {
	server *httptest.Server

	mu      sync.Mutex
	spans   []*spans.Span
	about   map[string]string // the last resource
	headers http.Header
	bad     error
}

func newOTLP(t *testing.T) *otlp {
	o := &otlp{}
	o.server = httptest.NewServer(o)
	t.Cleanup(o.server.Close)
	return o
}

func (o *otlp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		body, _ = gzip.NewReader(r.Body) // a bad one fails below
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
		o.about = facts(resource.Resource.Attributes)
		for _, scope := range resource.ScopeSpans {
			o.spans = append(o.spans, scope.Spans...)
		}
	}
}

func facts(attributes []*common.KeyValue) map[string]string {
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

// of gives the spans of a job in the order of their dispatches, once there are n.
func (o *otlp) of(t *testing.T, y *nodetest.Yard, id string, n int) (found []*spans.Span) {
	t.Helper()
	y.Eventually("the collector has the spans", func() error {
		found = nil
		o.mu.Lock()
		defer o.mu.Unlock()
		for dispatch := 1; dispatch <= n; dispatch++ {
			for _, s := range o.spans {
				if f := facts(s.Attributes); f["rrq.job_id"] == id && f["yard.dispatch"] == fmt.Sprint(dispatch) {
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

// enqueueTraced hands in a job with a producer's trace context.
func enqueueTraced(t *testing.T, m *nodetest.Member, queue, function string, trace map[string]string) string {
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

func runTold(t *testing.T, m *nodetest.Member, function string, trace map[string]string) (string, told) {
	t.Helper()
	id := enqueueTraced(t, m, "traced", function, trace)
	j := m.WaitOutcome(t, id)
	got, err := readTold(j.Result)
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

// TestTracing is one node that is started with one collector after another.
func TestTracing(t *testing.T) {
	if testing.Short() {
		t.Skip("starts nodes")
	}
	o := newOTLP(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", o.server.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=yard")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
	y := nodetest.Start(t, 1, telling(4))
	y.Members[0].AddQueue(t, "traced", 0)
	spansTold(t, y, o)
	t.Run("Off", func(t *testing.T) { tracingOff(t, y) })
	t.Run("DeadCollector", func(t *testing.T) { deadCollector(t, y) })
}

// spansTold: what the collector and whoever runs a job are told of it.
func spansTold(t *testing.T, y *nodetest.Yard, o *otlp) {
	m := y.Members[0]
	t.Run("Child", func(t *testing.T) {
		given := map[string]string{"TraceParent": "00-" + traceID + "-" + parentID + "-01", "tracestate": "a=1", "tenant": "x"}
		id, got := runTold(t, m, "demo#trace", given)
		s := o.of(t, y, id, 1)[0]
		if hex.EncodeToString(s.TraceId) != traceID || hex.EncodeToString(s.ParentSpanId) != parentID || s.TraceState != "a=1" {
			t.Errorf("span is %v", s)
		}
		if s.Name != "yard.job" || s.Kind != spans.Span_SPAN_KIND_CONSUMER || s.Status.GetCode() == spans.Status_STATUS_CODE_ERROR {
			t.Errorf("span is %v", s)
		}
		told := map[string]string{"traceparent": "00-" + traceID + "-" + hex.EncodeToString(s.SpanId) + "-01", "tracestate": "a=1", "tenant": "x"}
		if !maps.Equal(got.Trace, told) {
			t.Errorf("the runner was told %v, want %v", got.Trace, told)
		}
		want(t, facts(s.Attributes), map[string]string{
			"rrq.function": "demo#trace", "rrq.queue": "traced", "rrq.attempt": "1", "rrq.worker_id": got.Worker, "rrq.outcome": "success",
			"messaging.destination.name": "traced", "yard.request_id": id + "#1", "yard.node": "n1", "yard.job_state": "completed",
		})
		want(t, o.about, map[string]string{"service.name": "yardmaster", "service.instance.id": "n1", "deployment.environment": "test"})
		if got := o.headers.Get("X-Tenant"); got != "yard" {
			t.Errorf("the collector's header is %q", got)
		}
	})
	t.Run("Root", func(t *testing.T) {
		id, got := runTold(t, m, "demo#trace", nil)
		s := o.of(t, y, id, 1)[0]
		if want := fmt.Sprintf("00-%x-%x-01", s.TraceId, s.SpanId); len(s.ParentSpanId) != 0 || got.Trace["traceparent"] != want {
			t.Errorf("the runner was told %v, want %s; parent %x", got.Trace, want, s.ParentSpanId)
		}
	})
	t.Run("Retries", func(t *testing.T) {
		id, _ := runTold(t, m, "demo#again", map[string]string{"traceparent": "00-" + traceID + "-" + parentID + "-01"})
		for i, s := range o.of(t, y, id, 3) {
			f := facts(s.Attributes)
			want(t, f, map[string]string{"rrq.attempt": fmt.Sprint(i + 1), "rrq.outcome": []string{"retry", "retry", "success"}[i]})
			if hex.EncodeToString(s.ParentSpanId) != parentID || (f["rrq.retry_delay_ms"] == "") != (i == 2) {
				t.Errorf("span of attempt %d is %v", i+1, s)
			}
		}
	})
	t.Run("Failure", func(t *testing.T) {
		id := enqueueTraced(t, m, "traced", "demo#never", nil)
		m.WaitOutcome(t, id)
		s := o.of(t, y, id, 3)[2]
		want(t, facts(s.Attributes), map[string]string{"rrq.outcome": "error", "rrq.error_message": "no luck", "rrq.error_type": "luck", "yard.job_state": "failed"})
		if s.Status.GetCode() != spans.Status_STATUS_CODE_ERROR || s.Status.GetMessage() != "no luck" {
			t.Errorf("status is %v", s.Status)
		}
	})
	t.Run("Unsampled", func(t *testing.T) {
		id, got := runTold(t, m, "demo#trace", map[string]string{"traceparent": "00-" + traceID + "-" + parentID + "-00"})
		p := got.Trace["traceparent"]
		if !strings.HasPrefix(p, "00-"+traceID+"-") || !strings.HasSuffix(p, "-00") {
			t.Errorf("the runner was told %q", p)
		}
		after, _ := runTold(t, m, "demo#trace", nil)
		o.of(t, y, after, 1)
		o.of(t, y, id, 0)
	})
	t.Run("Worker", func(t *testing.T) {
		m.AddQueue(t, "overhop", 0)
		seen := make(chan overhop.Quest, 1)
		m.Worker(t, "overhop", 1, func(_ context.Context, q *overhop.Quest) (overhop.Raw, error) { seen <- *q; return nil, nil })
		id := enqueueTraced(t, m, "overhop", "", map[string]string{"traceparent": "00-" + traceID + "-" + parentID + "-01"})
		m.WaitOutcome(t, id)
		s := o.of(t, y, id, 1)[0]
		q := <-seen
		if want := fmt.Sprintf("00-%s-%x-01", traceID, s.SpanId); q.Trace["traceparent"] != want {
			t.Errorf("the worker was told %v, want %s", q.Trace, want)
		}
	})
}

// tracingOff: what the producer gave arrives as it is, and no collector hears of
// it.
func tracingOff(t *testing.T, y *nodetest.Yard) {
	m := y.Members[0]
	given := map[string]string{"TraceParent": "00-" + traceID + "-" + parentID + "-01", "x": "y"}
	for _, off := range []string{"OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=none", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="} {
		t.Run(off, func(t *testing.T) {
			o := newOTLP(t)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", o.server.URL)
			name, value, _ := strings.Cut(off, "=")
			t.Setenv(name, value)
			m.Restart()
			y.WaitReady()
			if _, got := runTold(t, m, "demo#trace", given); !maps.Equal(got.Trace, given) {
				t.Errorf("the runner was told %v, want %v", got.Trace, given)
			}
			m.Stop() // which would send the last spans
			if o.headers != nil {
				t.Error("the collector has heard something")
			}
		})
	}
}

// deadCollector: jobs run, and the node stops.
func deadCollector(t *testing.T, y *nodetest.Yard) {
	m := y.Members[0]
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
			y.WaitReady()
			m.AddQueue(t, name, 0)
			for range 20 {
				enqueueTraced(t, m, name, "demo#trace", nil)
			}
			y.Eventually("all have run", func() error { return m.Holds(name, "completed", 20) })
			began := time.Now()
			m.Stop() // fails the test itself if it takes too long
			t.Logf("stopped within %s", time.Since(began).Round(time.Millisecond))
		})
	}
}
