package rrq

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/yardmaster-dev/yardmaster/internal/frame"
)

// The messages are encoded by hand: every key is written, in the order of the
// protocol's description, without reflection. The functions that append a value first
// append a prefix, the JSON text since the previous value, as it is.

// appendRequest appends r as one frame to b. The error is a [*TooLargeError],
// or an [ErrMalformed] if Params is not a JSON object.
func appendRequest(b []byte, r *Request) ([]byte, error) {
	params, err := normalizeParams(r.Params)
	if err != nil {
		return b, err
	}
	b, mark := frame.Begin(b)
	b = appendString(b, `{"type":"request","payload":{"protocol_version":"2","request_id":`, r.RequestID)
	b = appendString(b, `,"job_id":`, r.JobID)
	b = appendString(b, `,"function_name":`, r.Function)
	b = append(b, `,"params":`...)
	b = append(b, params...)
	b = append(b, `,"context":`...)
	b = appendContext(b, &r.Context)
	b = append(b, "}}"...)
	return closeFrame(b, mark)
}

// appendContext appends c as a JSON object. A zero deadline is null.
func appendContext(b []byte, c *Context) []byte {
	b = appendString(b, `{"job_id":`, c.JobID)
	b = append(b, `,"attempt":`...)
	b = strconv.AppendUint(b, uint64(c.Attempt), 10)
	b = append(b, `,"enqueue_time":"`...)
	b = appendTime(b, c.EnqueueTime)
	b = appendString(b, `","queue_name":`, c.QueueName)
	if c.Deadline.IsZero() {
		b = append(b, `,"deadline":null`...)
	} else {
		b = append(b, `,"deadline":"`...)
		b = appendTime(b, c.Deadline)
		b = append(b, '"')
	}
	b = appendStringMap(b, `,"trace_context":`, c.Trace)
	b = appendStringMap(b, `,"correlation_context":`, c.Correlation)
	b = appendOptional(b, `,"worker_id":`, c.WorkerID)
	b = append(b, `,"fence":`...)
	b = strconv.AppendUint(b, c.Fence, 10)
	b = appendOptional(b, `,"dispatch_id":`, c.DispatchID)
	return append(b, '}')
}

// appendOutcome appends o as one frame to b. The error is a [*TooLargeError].
func appendOutcome(b []byte, o *Outcome) ([]byte, error) {
	b, mark := frame.Begin(b)
	b = appendString(b, `{"type":"response","payload":{"job_id":`, o.JobID)
	b = appendOptional(b, `,"request_id":`, o.RequestID)
	b = appendString(b, `,"status":`, o.Status)
	b = appendRaw(b, `,"result":`, o.Result)
	b = append(b, `,"error":`...)
	if fault := o.Fault; fault == nil {
		b = append(b, "null"...)
	} else {
		b = appendString(b, `{"message":`, fault.Message)
		b = appendOptional(b, `,"type":`, fault.Type)
		b = appendOptional(b, `,"code":`, fault.Code)
		b = appendRaw(b, `,"details":`, fault.Details)
		b = append(b, '}')
	}
	b = append(b, `,"retry_after_seconds":`...)
	if o.RetryAfter == nil {
		b = append(b, "null"...)
	} else {
		b = strconv.AppendFloat(b, *o.RetryAfter, 'f', -1, 64)
	}
	b = append(b, "}}"...)
	return closeFrame(b, mark)
}

// appendCancel appends c as one frame to b. The error is a [*TooLargeError].
func appendCancel(b []byte, c *Cancel) ([]byte, error) {
	b, mark := frame.Begin(b)
	b = appendString(b, `{"type":"cancel","payload":{"protocol_version":"2","job_id":`, c.JobID)
	b = appendOptional(b, `,"request_id":`, c.RequestID)
	b = append(b, `,"hard_kill":`...)
	b = strconv.AppendBool(b, c.HardKill)
	b = append(b, "}}"...)
	return closeFrame(b, mark)
}

// closeFrame finishes the frame that [frame.Begin] began at mark. A frame that
// the peer would refuse, because it exceeds [MaxFrame], is removed from b, and
// the error is a [*TooLargeError].
func closeFrame(b []byte, mark int) ([]byte, error) {
	if size := frame.End(b, mark); size > MaxFrame {
		return b[:mark], &TooLargeError{Size: size, Limit: MaxFrame}
	}
	return b, nil
}

// normalizeParams returns params in a form that a runner can decode: without
// leading space, {} if they are empty, and with U+FFFD for invalid UTF-8. The
// error is [ErrMalformed] if they are not a JSON object.
func normalizeParams(params json.RawMessage) (json.RawMessage, error) {
	params = bytes.TrimLeft(params, " \t\r\n")
	if len(params) == 0 {
		return json.RawMessage("{}"), nil
	}
	if params[0] != '{' || !json.Valid(params) {
		return nil, fmt.Errorf("%w: params are not a JSON object", ErrMalformed)
	}
	if !utf8.Valid(params) {
		params = bytes.ToValidUTF8(params, []byte("\uFFFD"))
	}
	return params, nil
}

// appendRaw appends prefix and then raw, which is JSON, or null if raw is empty.
func appendRaw(b []byte, prefix string, raw json.RawMessage) []byte {
	b = append(b, prefix...)
	if len(raw) == 0 {
		return append(b, "null"...)
	}
	return append(b, raw...)
}

// appendOptional appends prefix and then s as a JSON string, or null for "".
func appendOptional(b []byte, prefix, s string) []byte {
	if s == "" {
		return append(append(b, prefix...), "null"...)
	}
	return appendString(b, prefix, s)
}

// appendStringMap appends prefix and then m as a JSON object sorted by key, or null for
// nil.
func appendStringMap(b []byte, prefix string, m map[string]string) []byte {
	b = append(b, prefix...)
	if m == nil {
		return append(b, "null"...)
	}
	b = append(b, '{')
	separator := "" // none before the first key
	for _, key := range slices.Sorted(maps.Keys(m)) {
		b = appendString(b, separator, key)
		b = appendString(b, ":", m[key])
		separator = ","
	}
	return append(b, '}')
}

// appendString appends prefix and then s as a JSON string, in which invalid UTF-8
// becomes U+FFFD. Only a string that needs escapes is left to package json.
func appendString(b []byte, prefix, s string) []byte {
	b = append(b, prefix...)
	for i := range len(s) {
		c := s[i]
		if needsEscape := c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf; needsEscape {
			quoted, _ := json.Marshal(s) // a string cannot fail
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// appendTime appends a time as RFC 3339 in UTC, with at most microseconds,
// which every runtime preserves.
func appendTime(b []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(b, "2006-01-02T15:04:05.999999Z")
}
