package ledger

import (
	"encoding/json"

	"github.com/yardmaster-dev/yardmaster/job"
)

// The settings that acts have in history, under the names of the API. They are complete, so that
// a reader needs no earlier act.
type (
	// queueSettings are those of a queue.
	queueSettings struct {
		Concurrency    uint32            `json:"concurrency_limit,omitempty"`
		AllowOverrides bool              `json:"allow_job_overrides"`
		RetryOnTimeout bool              `json:"retry_on_timeout,omitempty"`
		Retention      []string          `json:"retention,omitempty"`
		Limits         []string          `json:"limits,omitempty"`
		Key            string            `json:"key,omitempty"`
		KeyOptional    bool              `json:"key_optional,omitempty"`
		Fair           bool              `json:"fair,omitempty"`
		Weights        map[string]uint32 `json:"weights,omitempty"`
		Age            int64             `json:"age_ms,omitempty"`
		Priority       *uint8            `json:"priority,omitempty"`
		MaxAttempts    uint32            `json:"max_attempts,omitempty"`
		Timeout        int64             `json:"timeout_ms,omitempty"`
		Retry          []retrySettings   `json:"retry,omitempty"`
		Index          []string          `json:"index,omitempty"`
	}

	// retrySettings are those of a rule by which a queue retries jobs.
	retrySettings struct {
		Function    string   `json:"function,omitempty"`
		MaxAttempts uint32   `json:"max_attempts,omitempty"`
		Backoff     int64    `json:"backoff_ms,omitempty"`
		MaxBackoff  int64    `json:"max_backoff_ms,omitempty"`
		Jitter      *uint8   `json:"jitter_percent,omitempty"`
		RetryOn     []string `json:"retry_on,omitempty"`
		DiscardOn   []string `json:"discard_on,omitempty"`
	}

	// limitSettings are those of a limit.
	limitSettings struct {
		Total       string           `json:"total"`
		PerKey      string           `json:"per_key"`
		Rate        string           `json:"rate"`
		Burst       uint32           `json:"burst,omitempty"`
		RatePerKey  string           `json:"rate_per_key"`
		BurstPerKey uint32           `json:"burst_per_key,omitempty"`
		Circuit     *circuitSettings `json:"circuit,omitempty"`
	}

	// circuitSettings are those of the circuit breaker of a limit.
	circuitSettings struct {
		OpenAfter  uint32   `json:"open_after"`
		Within     int64    `json:"within_ms"`
		On         []string `json:"on,omitempty"`
		HalfOpen   uint32   `json:"half_open,omitempty"`
		ProbeAfter int64    `json:"probe_after_ms,omitempty"`
	}

	// cronSettings are those of a cron entry.
	cronSettings struct {
		Schedule  string `json:"schedule"`
		TimeZone  string `json:"time_zone,omitempty"`
		Queue     string `json:"queue"`
		CatchUp   bool   `json:"catch_up,omitempty"`
		NoOverlap bool   `json:"no_overlap,omitempty"`
		Declared  bool   `json:"declared,omitempty"`
	}

	// memberSettings is a member in the list of members.
	memberSettings struct {
		Node  string `json:"node"`
		Dir   string `json:"dir"`
		State string `json:"state"`
	}
)

// settingsJSON returns settings as JSON.
func settingsJSON(settings any) json.RawMessage {
	text, err := json.Marshal(settings)
	if err != nil {
		panic("ledger: settings cannot be written as JSON: " + err.Error())
	}
	return text
}

func settingsOfQueue(c *job.QueueConfig) queueSettings {
	s := queueSettings{
		Concurrency: c.Limit, AllowOverrides: c.AllowOverrides, RetryOnTimeout: c.RetryOnTimeout, Retention: retentionTexts(c.Retention),
		Limits: c.Limits, Key: c.KeyPath, KeyOptional: c.KeyOptional, Fair: c.Fair, Age: c.Age.Milliseconds(),
		Priority: c.Priority, MaxAttempts: c.MaxAttempts, Timeout: c.Timeout.Milliseconds(), Index: c.Index,
	}
	if len(c.Weights) > 0 {
		s.Weights = make(map[string]uint32, len(c.Weights))
		for _, w := range c.Weights {
			s.Weights[w.Key] = w.Weight
		}
	}
	for _, r := range c.Retries {
		s.Retry = append(s.Retry, retrySettings{
			r.Function, r.MaxAttempts, r.Backoff.Milliseconds(), r.MaxBackoff.Milliseconds(), r.Jitter, r.RetryOn, r.DiscardOn,
		})
	}
	return s
}

// retentionTexts returns retention settings as text, such as "failed.age=1h".
func retentionTexts(settings []job.RetentionSetting) (texts []string) {
	for _, s := range settings {
		texts = append(texts, s.String())
	}
	return texts
}

func settingsOfLimit(m *job.Limit) limitSettings {
	s := limitSettings{
		Total: m.Total.String(), PerKey: m.PerKey.String(), Rate: m.Rate.String(), Burst: m.Burst,
		RatePerKey: m.RatePerKey.String(), BurstPerKey: m.BurstPerKey,
	}
	if c := m.Circuit; c.OpenAfter > 0 {
		s.Circuit = &circuitSettings{c.OpenAfter, c.Within.Milliseconds(), c.On, c.HalfOpen, c.ProbeAfter.Milliseconds()}
	}
	return s
}

func settingsOfCron(c *Cron) cronSettings {
	return cronSettings{c.Schedule, c.TimeZone, c.Queue, c.CatchUp, c.NoOverlap, c.Declared}
}

func settingsOfMembers(members []Member) []memberSettings {
	list := make([]memberSettings, len(members))
	for i := range members {
		list[i] = memberSettings{members[i].Node, members[i].Dir, members[i].State.String()}
	}
	return list
}
