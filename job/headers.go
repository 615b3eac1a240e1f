package job

import (
	"encoding/json"
	"time"
)

// Headers are the message headers in which a producer may give what it does not
// give in the body. The body takes precedence.
type Headers struct {
	Delay       string // a Go duration such as "30s"; same as delay_ms in the body
	Traceparent string // W3C Trace Context, added to trace_context
	Tracestate  string // likewise
}

// MergeHeaders returns body with h applied. It returns a body that is not a
// valid job unchanged, so that the job is later rejected for what is wrong with
// its body. The error is an [*InvalidError] about the headers.
func MergeHeaders(body []byte, h Headers) ([]byte, error) {
	if h == (Headers{}) {
		return body, nil
	}
	spec, err := ParseSpec(body)
	if err != nil {
		return body, nil
	}
	added, err := spec.ApplyHeaders(h)
	if err != nil || !added {
		return body, err
	}
	full, err := json.Marshal(spec)
	if err != nil {
		return body, invalid("job cannot be written as JSON: %v", err)
	}
	return full, nil
}

// ApplyHeaders sets those fields of s that h gives and s does not, and reports
// whether it set any. The error is an [*InvalidError].
func (s *Spec) ApplyHeaders(h Headers) (added bool, err error) {
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
	return added, s.validateFields()
}

// Limits of trace_context.
const (
	MaxTraceEntries = 64
	MaxTraceKeyLen  = 128      // bytes of one name
	MaxTraceBytes   = 16 << 10 // bytes of all names and values together
	maxTracestate   = 512      // bytes; W3C allows dropping a longer one
)

func validTrace(trace map[string]string) error {
	if len(trace) > MaxTraceEntries {
		return invalid("trace_context has %d entries; at most %d", len(trace), MaxTraceEntries)
	}
	bytes := 0
	for name, value := range trace {
		if name == "" || len(name) > MaxTraceKeyLen {
			return invalid("trace_context has a name of %d bytes; must have 1 to %d", len(name), MaxTraceKeyLen)
		}
		bytes += len(name) + len(value)
	}
	if bytes > MaxTraceBytes {
		return invalid("trace_context has %d bytes; at most %d", bytes, MaxTraceBytes)
	}
	return nil
}

// validTraceparent reports whether text is a valid W3C traceparent: version,
// trace id, span id and flags in lower-case hexadecimal, neither id all zeros.
// A malformed header is ignored; it is not a reason to reject a job.
func validTraceparent(text string) bool {
	const shape = "00-00000000000000000000000000000000-0000000000000000-00"
	if len(text) < len(shape) || len(text) > 128 || text[:2] == "ff" {
		return false
	}
	if len(text) > len(shape) && (text[:2] == "00" || text[len(shape)] != '-') { // later versions may append fields
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
