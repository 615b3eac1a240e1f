package job

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Fault describes why an attempt failed.
type Fault struct {
	Message string          `json:"message"`
	Type    string          `json:"type,omitempty"`
	Code    string          `json:"code,omitempty"`
	Details json.RawMessage `json:"details,omitempty"`
}

// Fault types that the system itself sets or interprets.
const (
	HandlerNotFound = "handler_not_found" // final
	FaultCancelled  = "cancelled"
	FaultExpired    = "expired" // the job had not started in time
	FaultTimeout    = "timeout"
	FaultLost       = "lost"
	FaultInvalid    = "invalid"  // the job cannot be run as it is; final
	FaultRejected   = "rejected" // the record never became a job
)

// Limits of a fault in an [Outcome], in bytes.
const (
	MaxInlineFault  = 4 << 10 // of the whole fault
	MaxFaultNameLen = 256     // of its type or code
)

// Cut shortens f to [MaxInlineFault] bytes. The message and the details each have half of
// that, and what the other does not use.
func (f *Fault) Cut() {
	f.Type, f.Code = CutText(f.Type, MaxFaultNameLen), CutText(f.Code, MaxFaultNameLen)
	budget := MaxInlineFault - len(f.Type) - len(f.Code)
	f.Details = CutJSON(f.Details, budget-min(len(f.Message), budget/2))
	f.Message = CutText(f.Message, budget-len(f.Details))
}

// CutText returns text of at most n bytes: a longer text ends between two characters, with
// a mark.
func CutText(text string, n int) string {
	if len(text) <= n {
		return text
	}
	const mark = " (cut)"
	end := max(0, n-len(mark))
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}

// CutJSON returns a JSON value of at most n bytes, which must be at least 64. A longer
// value, which cannot be cut and remain JSON, becomes an object that has its size in bytes
// and its beginning as text. Such an object can be cut again, and keeps the original's size.
func CutJSON(value json.RawMessage, n int) json.RawMessage {
	if len(value) <= n {
		return value
	}
	const begin, end = `{"cut":true,"bytes":`, `"}`
	size, start := len(value), string(value)
	var earlier struct {
		Bytes int
		Start string
	}
	if strings.HasPrefix(start, begin) && json.Unmarshal(value, &earlier) == nil {
		size, start = earlier.Bytes, earlier.Start
	}
	b := fmt.Appendf(make([]byte, 0, n), begin+`%d,"start":"`, size)
	for _, r := range start {
		var char [utf8.UTFMax]byte
		escaped := utf8.AppendRune(char[:0], r)
		switch {
		case r == '"' || r == '\\':
			escaped = append(char[:0], '\\', byte(r))
		case r < ' ': // white space between values
			escaped = append(char[:0], ' ')
		}
		if len(b)+len(escaped)+len(end) > n {
			break
		}
		b = append(b, escaped...)
	}
	return append(b, end...)
}
