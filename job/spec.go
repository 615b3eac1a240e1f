package job

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Limits of a record.
const (
	MaxFunctionLen = 256      // bytes
	MaxInlineBody  = 64 << 10 // bytes; a larger body is stored as a blob
	MaxBody        = 48 << 20 // bytes of any body: enough for the largest Overhop frame in base64
	MaxDuration    = duration.Max
)

// Spec is what a producer asks for: the JSON body of a record. At least one of
// Function, Params, Payload and Blob is set.
type Spec struct {
	Function       string            `json:"function,omitempty"`
	Params         json.RawMessage   `json:"params,omitempty"`          // a JSON object
	Payload        []byte            `json:"payload_msgpack,omitempty"` // one MessagePack value
	RunAt          *time.Time        `json:"run_at,omitempty"`          // not before; excludes DelayMS
	DelayMS        *int64            `json:"delay_ms,omitempty"`        // not before this time after the record was stored
	Priority       *int64            `json:"priority,omitempty"`
	MaxAttempts    *int64            `json:"max_attempts,omitempty"`
	TimeoutMS      *int64            `json:"timeout_ms,omitempty"`
	RetryInterval  *int64            `json:"retry_interval_ms,omitempty"`
	RetryOnTimeout *bool             `json:"retry_on_timeout,omitempty"` // whether a timeout is retried like an error; absent: as its queue has it
	ResultTTLMS    *int64            `json:"result_ttl_ms,omitempty"`    // how long the result is kept visible after the end; 0: as long as it is stored
	Trace          map[string]string `json:"trace_context,omitempty"`    // passed to the worker unchanged
	Blob           *Blob             `json:"blob,omitempty"`             // written by nodes only
	Indexed        IndexedValues     `json:"indexed,omitempty"`          // likewise, with Blob

	// See [Guards]. Times are in milliseconds.
	UniqueKey    *string `json:"unique_key,omitempty"`
	UniqueTTLMS  *int64  `json:"unique_ttl_ms,omitempty"`
	UniqueUntil  *string `json:"unique_until,omitempty"` // "start" or "end" of the job; excludes UniqueTTLMS
	RateLimitKey *string `json:"rate_limit_key,omitempty"`
	RateLimitMS  *int64  `json:"rate_limit_ms,omitempty"`
	DebounceKey  *string `json:"debounce_key,omitempty"`
	DebounceMS   *int64  `json:"debounce_ms,omitempty"`

	LimitKey    *string           `json:"limit_key,omitempty"`     // under which the job uses limits, and shares a fair queue
	Key         *string           `json:"key,omitempty"`           // a short form of LimitKey, see [Spec.UseKey]
	Limits      map[string]string `json:"limits,omitempty"`        // limits that the job uses besides those of its queue, each with a key; "" stands for LimitKey
	Tags        []string          `json:"tags,omitempty"`          // shown with the job
	Meta        map[string]string `json:"meta,omitempty"`          // likewise
	ExpiresAt   *time.Time        `json:"expires_at,omitempty"`    // a job that has not started by then ends as expired; excludes ExpiresInMS
	ExpiresInMS *int64            `json:"expires_in_ms,omitempty"` // likewise, from the time at which the record was stored
}

// Blob refers to bytes that are too large for a record or a message. The blob
// of a job contains the JSON of a Spec without Blob.
type Blob struct {
	Name   string `json:"name"` // tokens of the subject: after "yard.blob.", or "yard.resultblob." for a result
	Chunks int    `json:"chunks"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // hex
	// Checked is what the node that checked the payload against a schema has written; "": none
	// has. Package server/schemas writes and verifies it.
	Checked string `json:"checked,omitempty"`
}

// Owner returns the id in the name of a blob that contains a body: that of the record
// for which the blob was stored, which is the job's unless the record debounced
// another job. It is zero if the name does not begin with an id.
func (b *Blob) Owner() ID {
	owner, _, _ := strings.Cut(b.Name, ".")
	id, _ := ParseID(owner)
	return id
}

// InvalidError describes what is wrong with a record or a request, and what would be
// valid.
type InvalidError struct{ Reason string }

func (e *InvalidError) Error() string { return e.Reason }

func invalid(format string, args ...any) error {
	return &InvalidError{Reason: fmt.Sprintf(format, args...)}
}

// ParseSpec parses and validates a record's body. It ignores unknown keys and the text under
// "key", see [ParseRecord]. It does not panic on any input. The error is an [*InvalidError].
func ParseSpec(body []byte) (Spec, error) {
	s, err := ParseShared(body)
	s.Params = bytes.Clone(s.Params)
	return s, err
}

// ParseShared is [ParseSpec] for a spec that is not kept: its params may share the memory
// of body.
func ParseShared(body []byte) (Spec, error) {
	var s Spec
	if !s.scan(body, false) { // much faster than encoding/json, but not for every body
		var err error
		if s, err = decodeSpec(body); err != nil {
			return Spec{}, err
		}
		s.Key = nil
	}
	return s, s.Validate()
}

// ParseJob is [ParseSpec] for what a producer wrote, before a node added anything: the text
// under "key" is the job's limit key.
func ParseJob(body []byte) (Spec, error) {
	s, err := parseWithKey(body)
	if err == nil {
		err = s.UseKey()
	}
	if err == nil {
		err = s.Validate()
	}
	s.Params = bytes.Clone(s.Params)
	return s, err
}

// parseWithKey parses a body, including the text under "key", and does not validate it. The
// params may share the memory of body.
func parseWithKey(body []byte) (Spec, error) {
	var s Spec
	if s.scan(body, true) {
		return s, nil
	}
	return decodeSpec(body)
}

// decodeSpec parses a body with encoding/json. It is a function of its own because its spec is
// allocated.
func decodeSpec(body []byte) (Spec, error) {
	var s Spec
	if err := json.Unmarshal(body, &s); err != nil {
		return Spec{}, invalid("job is not valid JSON: %v", describeJSONError(err))
	}
	if string(s.Params) == "null" { // absent, as in every other field
		s.Params = nil
	}
	return s, nil
}

// Validate checks that the fields are complete, within their ranges and
// compatible with each other. A spec that refers to a blob needs no function, params
// or payload, because the blob contains them. The error is an [*InvalidError].
func (s *Spec) Validate() error {
	if s.Blob != nil {
		return s.validateBlob()
	}
	if s.Function == "" && len(s.Params) == 0 && len(s.Payload) == 0 {
		return invalid("job names nothing to do: give function, params or payload_msgpack")
	}
	if len(s.Params) > 0 && !isJSONObject(s.Params) {
		return invalid("params must be a JSON object; send any other value as payload_msgpack")
	}
	if len(s.Params) > 0 && len(s.Payload) > 0 {
		return invalid("params and payload_msgpack exclude each other")
	}
	return s.validateFields()
}

// validateBlob checks a spec whose Blob, which must be set, refers to what the job is
// to do.
func (s *Spec) validateBlob() error {
	if s.Blob.Name == "" || s.Blob.Chunks < 1 || s.Blob.Size < 1 || s.Blob.Size > MaxBody || len(s.Blob.SHA256) != 64 {
		return invalid("blob reference is incomplete: it needs name, chunks, size (1 to %d) and sha256", MaxBody)
	}
	return s.validateFields()
}

// validateFields checks every field by itself, except for what the job is to do,
// and the combinations of fields. The error is an [*InvalidError].
func (s *Spec) validateFields() error {
	if len(s.Function) > MaxFunctionLen {
		return invalid("function has %d bytes; at most %d", len(s.Function), MaxFunctionLen)
	}
	for _, field := range [...]struct {
		name     string
		value    *int64
		min, max int64
	}{
		{"priority", s.Priority, 0, MaxPriority},
		{"max_attempts", s.MaxAttempts, 1, 1<<32 - 1},
		{"timeout_ms", s.TimeoutMS, 1, MaxDuration.Milliseconds()},
		{"retry_interval_ms", s.RetryInterval, 1, MaxDuration.Milliseconds()},
		{"delay_ms", s.DelayMS, 0, MaxDuration.Milliseconds()},
		{"result_ttl_ms", s.ResultTTLMS, 0, MaxDuration.Milliseconds()},
		{"expires_in_ms", s.ExpiresInMS, 1, MaxDuration.Milliseconds()},
	} {
		if field.value != nil && (*field.value < field.min || *field.value > field.max) {
			return invalid("%s is %d; must be %d to %d", field.name, *field.value, field.min, field.max)
		}
	}
	if s.RunAt != nil && (s.RunAt.Year() < 1970 || s.RunAt.Year() > 2200) {
		return invalid("run_at %s is out of range; must be in the years 1970 to 2200", s.RunAt.Format(time.RFC3339))
	}
	if s.RunAt != nil && s.DelayMS != nil {
		return invalid("run_at and delay_ms exclude each other: the one is a moment, the other a time from when the job is stored")
	}
	if err := validateTrace(s.Trace); err != nil {
		return err
	}
	if err := s.validateGuards(); err != nil {
		return err
	}
	if err := s.validateLimits(); err != nil {
		return err
	}
	if err := s.validateLabels(); err != nil {
		return err
	}
	return s.validateExpiry()
}

func isJSONObject(raw json.RawMessage) bool {
	t := bytes.TrimLeft(raw, " \t\r\n")
	return len(t) > 0 && t[0] == '{'
}

// Deferred reports whether the job has a start time or a delay.
func (s *Spec) Deferred() bool { return s.RunAt != nil || s.DelayMS != nil }

// ClearSchedule removes the start time and the delay, so that the job is due
// immediately.
func (s *Spec) ClearSchedule() { s.RunAt, s.DelayMS = nil, nil }

// Job returns the facts of the job that s describes: the ledger's part, without
// the body. pos is the place of the job's record, stored the time at which the
// record was stored.
func (s *Spec) Job(id ID, queue string, pos Position, stored time.Time) Job {
	j := Job{
		ID: id, Queue: queue, Function: s.Function, Position: pos, Accepted: stored, Priority: DefaultPriority,
		Timeout: milliseconds(s.TimeoutMS), RetryInterval: milliseconds(s.RetryInterval), ResultTTL: milliseconds(s.ResultTTLMS),
		RetryOnTimeout: s.RetryOnTimeout, Guards: s.guards(), Limits: s.limitUses(), Expires: s.expiry(stored), ExpiresIn: milliseconds(s.ExpiresInMS), NoPriority: s.Priority == nil,
	}
	if s.LimitKey != nil {
		j.LimitKey = *s.LimitKey
	}
	if s.Blob != nil {
		j.BlobOwner = s.Blob.Owner()
	}
	if s.RunAt != nil {
		j.RunAt = *s.RunAt
	}
	if j.Delay = milliseconds(s.DelayMS); j.Delay > 0 {
		j.RunAt = stored.Add(j.Delay)
	}
	if s.Priority != nil {
		j.Priority = uint8(*s.Priority)
	}
	if s.MaxAttempts != nil {
		j.MaxAttempts = uint32(*s.MaxAttempts)
	}
	return j
}

// milliseconds returns a number of milliseconds as a duration, 0 for nil.
func milliseconds(ms *int64) time.Duration {
	if ms == nil {
		return 0
	}
	return time.Duration(*ms) * time.Millisecond
}
