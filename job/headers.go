package job

import (
	"regexp"
	"strings"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Headers are the message headers in which a producer may give what it does not
// give in the body. The body takes precedence.
type Headers struct {
	Delay       string // a duration such as "30s" or "1d"; same as delay_ms in the body
	Traceparent string // W3C Trace Context, added to trace_context
	Tracestate  string // likewise
}

// ApplyHeaders sets those fields of s that h gives and s does not, and reports
// whether it set any. The error is an [*InvalidError].
func (s *Spec) ApplyHeaders(h Headers) (added bool, err error) {
	if h == (Headers{}) {
		return false, nil
	}
	if h.Delay != "" && !s.Deferred() {
		delay, err := duration.Parse(h.Delay)
		if err != nil || delay < 0 {
			return false, invalid("header Yard-Delay is %q: must be a time from now like 30s, 1h30m or 1d", h.Delay)
		}
		s.DelayMS, added = new(delay.Milliseconds()), true
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

// validateTrace checks the number and the sizes of a trace context's entries. The
// error is an [*InvalidError].
func validateTrace(trace map[string]string) error {
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

// traceparentForm is the form of a W3C traceparent: version, trace id, span id
// and flags, and what later versions may append.
var traceparentForm = regexp.MustCompile(`(?s)^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?$`)

// validTraceparent reports whether text is a valid W3C traceparent of at most 128
// bytes, neither id of which is all zeros. A malformed header is ignored; it is
// not a reason to reject a job.
func validTraceparent(text string) bool {
	parts := traceparentForm.FindStringSubmatch(text)
	if parts == nil || len(text) > 128 {
		return false
	}
	version, traceID, spanID, appended := parts[1], parts[2], parts[3], parts[4]
	validVersion := version != "ff" && (version != "00" || appended == "")
	return validVersion && strings.Trim(traceID, "0") != "" && strings.Trim(spanID, "0") != ""
}
