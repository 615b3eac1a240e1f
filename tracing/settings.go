package tracing

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

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
	if _, own := lookup(name); !own { // set but empty, it disables tracing
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
