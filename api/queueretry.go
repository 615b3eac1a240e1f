package api

import "github.com/yardmaster-dev/yardmaster/job"

// RetryRule is how a queue retries the jobs of a function. A setting that is omitted is as for
// the queue or the yard.
type RetryRule struct {
	Function     string   `json:"function"` // "" means all functions of the queue without a rule of their own
	MaxAttempts  uint32   `json:"max_attempts,omitempty"`
	BackoffMS    int64    `json:"backoff_ms,omitempty"`     // after the first failure, doubled with each attempt
	MaxBackoffMS int64    `json:"max_backoff_ms,omitempty"` // the longest delay
	Jitter       *uint8   `json:"jitter,omitempty"`         // percent by which a delay is lengthened at most
	RetryOn      []string `json:"retry_on,omitempty"`       // types and codes of the errors that are retried
	DiscardOn    []string `json:"discard_on,omitempty"`     // types and codes of the errors that end the job
}

// RetryRuleChange changes a queue's rule for a function: those settings that are given. A rule
// without any setting is removed.
type RetryRuleChange struct {
	Function     string            `json:"function"`         // "" means all functions of the queue without a rule of their own
	Remove       bool              `json:"remove,omitempty"` // removes the rule; settings in the same change make a new one
	MaxAttempts  Setting[int64]    `json:"max_attempts,omitzero"`
	BackoffMS    Setting[int64]    `json:"backoff_ms,omitzero"`
	MaxBackoffMS Setting[int64]    `json:"max_backoff_ms,omitzero"`
	Jitter       Setting[int64]    `json:"jitter,omitzero"`
	RetryOn      Setting[[]string] `json:"retry_on,omitzero"`
	DiscardOn    Setting[[]string] `json:"discard_on,omitzero"`
}

// UnmarshalJSON reads a change of a rule and refuses unknown keys, also within a [Setting].
func (r *RetryRuleChange) UnmarshalJSON(data []byte) error {
	type plain RetryRuleChange // without this method
	return job.UnmarshalStrict("a retry rule", data, (*plain)(r))
}

// retryRulesOf returns the retry rules of a queue as the API shows them.
func retryRulesOf(rules []job.RetryRule) (shown []RetryRule) {
	for _, r := range rules {
		shown = append(shown, RetryRule{
			Function: r.Function, MaxAttempts: r.MaxAttempts, BackoffMS: r.Backoff.Milliseconds(), MaxBackoffMS: r.MaxBackoff.Milliseconds(),
			Jitter: r.Jitter, RetryOn: r.RetryOn, DiscardOn: r.DiscardOn,
		})
	}
	return shown
}
