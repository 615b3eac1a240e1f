package job

import (
	"encoding/json"
	"time"
)

// Headers are what a producer may say in the headers of its message instead of
// the body. What the body says counts more.
type Headers struct {
	Delay       string // like "30s": what delay_ms says in the body
	Traceparent string // W3C Trace Context; for a trace_context
	Tracestate  string // likewise
}

// WithHeaders gives the body with what its headers add. A body that is no job
// stays as it is: it will be refused for what it is. The error, an
// [*InvalidError], is about the headers.
func WithHeaders(body []byte, h Headers) ([]byte, error) {
	if h == (Headers{}) {
		return body, nil
	}
	spec, err := ParseSpec(body)
	if err != nil {
		return body, nil
	}
	added, err := spec.Take(h)
	if err != nil || !added {
		return body, err
	}
	full, err := json.Marshal(spec)
	if err != nil {
		return body, invalid("job cannot be written as JSON: %v", err)
	}
	return full, nil
}

// Take adds to a job what headers say and its body does not; added tells
// whether there was anything. The error is an [*InvalidError].
func (s *Spec) Take(h Headers) (added bool, err error) {
	if h == (Headers{}) {
		return false, nil
	}
	if h.Delay != "" && !s.Deferred() {
		d, err := time.ParseDuration(h.Delay)
		if err != nil || d < 0 {
			return false, invalid("header Yard-Delay is %q: must be a time from now like 30s, 250ms or 1h30m", h.Delay)
		}
		ms := d.Milliseconds()
		s.DelayMS, added = &ms, true
	}
	if len(s.Trace) == 0 && validTraceparent(h.Traceparent) {
		s.Trace = map[string]string{"traceparent": h.Traceparent}
		if h.Tracestate != "" && len(h.Tracestate) <= maxTracestate {
			s.Trace["tracestate"] = h.Tracestate
		}
		added = true
	}
	return added, s.validateFacts()
}

// Bounds of a trace.
const (
	MaxTrace      = 64       // entries
	MaxTraceKey   = 128      // bytes of a name
	MaxTraceBytes = 16 << 10 // of all names and values together
	maxTracestate = 512      // bytes; W3C lets a longer one be dropped
)

func validTrace(trace map[string]string) error {
	if len(trace) > MaxTrace {
		return invalid("trace_context has %d entries; at most %d", len(trace), MaxTrace)
	}
	bytes := 0
	for name, value := range trace {
		if name == "" || len(name) > MaxTraceKey {
			return invalid("trace_context has a name of %d bytes; must have 1 to %d", len(name), MaxTraceKey)
		}
		bytes += len(name) + len(value)
	}
	if bytes > MaxTraceBytes {
		return invalid("trace_context has %d bytes; at most %d", bytes, MaxTraceBytes)
	}
	return nil
}

// validTraceparent tells a header that W3C's rules let count: version, trace,
// span and flags in lower hexadecimal, neither id all zeros. One that is
// malformed is no reason to refuse a job.
func validTraceparent(text string) bool {
	const shape = "00-00000000000000000000000000000000-0000000000000000-00"
	if len(text) < len(shape) || len(text) > 128 || text[:2] == "ff" {
		return false
	}
	if len(text) > len(shape) && (text[:2] == "00" || text[len(shape)] != '-') { // later versions may go on
		return false
	}
	for i := range shape {
		c := text[i]
		hex := c >= '0' && c <= '9' || c >= 'a' && c <= 'f'
		if dash := shape[i] == '-'; dash != (c == '-') || !dash && !hex {
			return false
		}
	}
	return text[3:35] != shape[3:35] && text[36:52] != shape[36:52]
}
