package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/edge/overhop"
	"github.com/yardmaster-dev/yardmaster/job"
)

// storedSpec is the JSON of a [Spec].
type storedSpec struct {
	api.BulkJob
	ExistingOnConflict bool `json:"existing_on_conflict,omitempty"`
}

// MarshalJSON returns the job as JSON, so that it can be stored and enqueued later: as a
// bulk request of the API has it, and existing_on_conflict. Params that are a struct or map
// without []byte are in params, others in payload_msgpack. The error wraps [ErrInvalidJob]
// if the cluster would refuse the job whatever its state.
func (s Spec) MarshalJSON() ([]byte, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	if s.Delay > 0 {
		s.RunAt, s.Delay = time.Now().Add(s.Delay), 0 // it is enqueued later
	}
	request, err := s.apiRequest()
	if err != nil {
		return nil, err
	}
	stored := storedSpec{api.BulkJob{EnqueueRequest: *request, Queue: s.Queue}, s.ExistingOnConflict}
	if err := stored.check(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(stored)
	if err != nil {
		return nil, invalidJob("%w", err)
	}
	return text, nil
}

// UnmarshalJSON stores a job that MarshalJSON has written, or that a program in another
// language has written alike, in s. Its params are sent exactly as those of the original.
// The error wraps [ErrInvalidJob]; keys that s cannot hold, such as delay_ms, are errors.
func (s *Spec) UnmarshalJSON(text []byte) error {
	var stored storedSpec
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&stored); err != nil {
		return invalidJob("%w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return invalidJob("there are bytes after the JSON object")
	}
	if string(stored.Params) == "null" {
		stored.Params = nil
	}
	if stored.DelayMS != nil || stored.Blob != nil {
		return invalidJob("a stored job has no delay_ms or blob; set run_at for a later start")
	}
	if err := stored.check(); err != nil {
		return err
	}
	params, err := stored.params()
	if err != nil {
		return err
	}
	*s = Spec{
		Queue: stored.Queue, Function: stored.Function, Params: params, Key: stored.ID, ExistingOnConflict: stored.ExistingOnConflict,
		MaxAttempts: int(valueOr0(stored.MaxAttempts)), Timeout: milliseconds(stored.TimeoutMS), RetryOnTimeout: stored.RetryOnTimeout,
		RetryInterval: milliseconds(stored.RetryInterval), ResultTTL: milliseconds(stored.ResultTTLMS), Trace: stored.Trace,
		UniqueKey: valueOr0(stored.UniqueKey), UniqueTTL: milliseconds(stored.UniqueTTLMS), UniqueUntil: valueOr0(stored.UniqueUntil),
		RateLimitKey: valueOr0(stored.RateLimitKey), RateLimit: milliseconds(stored.RateLimitMS),
		DebounceKey: valueOr0(stored.DebounceKey), Debounce: milliseconds(stored.DebounceMS),
		LimitKey: stored.LimitKey, Limits: stored.Limits, Tags: stored.Tags, Meta: stored.Meta, ExpiresIn: milliseconds(stored.ExpiresInMS),
		ExpiresAt: valueOr0(stored.ExpiresAt),
	}
	if stored.Priority != nil {
		s.Priority = new(int(*stored.Priority))
	}
	if stored.RunAt != nil {
		s.RunAt = *stored.RunAt
	}
	return s.validate()
}

// check returns an error that wraps [ErrInvalidJob] if the cluster would refuse the job.
func (s *storedSpec) check() error {
	_, keyErr := job.KeyID(s.Queue, s.ID)
	if err := errors.Join(job.ValidQueue(s.Queue), keyErr, s.UseKey(), s.Validate(), s.CheckProducer()); err != nil {
		return invalidJob("%w", err)
	}
	return nil
}

// params returns the params as [Spec] has them.
func (s *storedSpec) params() (any, error) {
	switch {
	case len(s.Params) > 0:
		params, err := overhop.FromJSON(s.Params)
		if err != nil {
			return nil, invalidJob("params: %w", err)
		}
		return params, nil
	case len(s.Payload) == 0 || s.Function == "" && overhop.Raw(s.Payload).Kind() == overhop.KindNil: // as apiRequest has written
		return nil, nil
	}
	if err := overhop.Check(s.Payload); err != nil {
		return nil, invalidJob("payload_msgpack: %w", err)
	}
	return overhop.Raw(s.Payload), nil
}

func milliseconds(ms *int64) time.Duration { return time.Duration(valueOr0(ms)) * time.Millisecond }

// valueOr0 returns what p points to, the zero value if p is nil.
func valueOr0[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}
