package api

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// LimitRequest names a limit.
type LimitRequest struct {
	Name  string `json:"name"`
	Force bool   `json:"force"` // remove it although queues use it: it is taken from them
}

// LimitListRequest asks for a page of the limits.
type LimitListRequest struct {
	Limit int    `json:"limit"` // limits of a page, 1 to 200; 0 means 200
	After string `json:"after"` // Next of the previous page; "" means the first page
}

// LimitChange names a limit, which is created if it does not exist, and the settings of it that
// change.
type LimitChange struct {
	Name        string            `json:"name"`
	Total       Setting[int64]    `json:"total,omitzero"`          // jobs that run at the same time, 1 to [job.MaxLimit]; null: any number
	PerKey      Setting[int64]    `json:"per_key,omitzero"`        // the same, of each key
	Rate        Setting[string]   `json:"rate,omitzero"`           // starts, such as "100/s", "5/m", "1/h" or "3/10s"
	Burst       Setting[int64]    `json:"burst,omitzero"`          // starts at once, after a pause; null: those of a tenth of a second
	RatePerKey  Setting[string]   `json:"rate_per_key,omitzero"`   // starts, of each key
	BurstPerKey Setting[int64]    `json:"burst_per_key,omitzero"`  // as burst
	OpenAfter   Setting[int64]    `json:"open_after,omitzero"`     // so many failures open the circuit; null: it has none
	Within      Setting[int64]    `json:"within_ms,omitzero"`      // the time in which the failures are counted
	On          Setting[[]string] `json:"on,omitzero"`             // types or codes of errors that count; null: all
	HalfOpen    Setting[int64]    `json:"half_open,omitzero"`      // how many jobs may probe at the same time; null: one
	ProbeAfter  Setting[int64]    `json:"probe_after_ms,omitzero"` // how long the circuit is open before the first probe; null: as within_ms
}

// Change returns the change of the ledger's limit. The error is a [*job.InvalidError].
func (c *LimitChange) Change() (change job.LimitChange, err error) {
	var v settings
	slots := func(name string, s Setting[int64]) *job.Slots {
		return settingOf(&v, name, s, job.Unbounded, func(n int64) (job.Slots, bool) { return job.Slots(n), n >= 1 && n <= job.MaxLimit },
			"1 to 4294967295, or null for no bound; pausing the limit starts no job")
	}
	rate := func(name string, s Setting[string]) *job.Rate {
		return settingOf(&v, name, s, job.Rate{}, func(text string) (job.Rate, bool) {
			r, err := job.ParseRate(text)
			return r, err == nil && text != "none"
		}, "a number of starts and a time, such as 100/s, 5/m, 1/h or 3/10s, or null for no bound")
	}
	count := func(name string, s Setting[int64], most int64) *uint32 {
		return countOf(&v, name, s, most)
	}
	change = job.LimitChange{
		Total: slots("total", c.Total), PerKey: slots("per_key", c.PerKey),
		Rate: rate("rate", c.Rate), RatePerKey: rate("rate_per_key", c.RatePerKey),
		Burst: count("burst", c.Burst, job.MaxBurst), BurstPerKey: count("burst_per_key", c.BurstPerKey, job.MaxBurst),
		OpenAfter: count("open_after", c.OpenAfter, job.MaxOpenAfter), HalfOpen: count("half_open", c.HalfOpen, job.MaxOpenAfter),
		Within: millisecondsOf(&v, "within_ms", c.Within), ProbeAfter: millisecondsOf(&v, "probe_after_ms", c.ProbeAfter),
		On: NamesOf(c.On),
	}
	return change, v.err
}

// Limit is a limit, and how much of it is used.
type Limit struct {
	Name        string   `json:"name"`
	Total       *int64   `json:"total"`   // nil means any number
	PerKey      *int64   `json:"per_key"` // nil means any number
	Rate        string   `json:"rate,omitempty"`
	Burst       uint32   `json:"burst,omitempty"`
	RatePerKey  string   `json:"rate_per_key,omitempty"`
	BurstPerKey uint32   `json:"burst_per_key,omitempty"`
	OpenAfter   uint32   `json:"open_after,omitempty"`
	Within      int64    `json:"within_ms,omitempty"`
	On          []string `json:"on,omitempty"`
	HalfOpen    uint32   `json:"half_open,omitempty"`
	ProbeAfter  int64    `json:"probe_after_ms,omitempty"`

	Changed   time.Time     `json:"changed"` // when it was set last
	Paused    bool          `json:"paused"`
	Running   int           `json:"running"`
	Waiting   int           `json:"waiting"`                 // due jobs that use it, whatever they wait for
	FullSince *time.Time    `json:"full_since,omitempty"`    // since when total jobs have been running, apart from gaps of a second; nil: fewer are
	Tokens    *int          `json:"tokens,omitempty"`        // starts that the rate permits at once; nil: it has none
	NextStart *time.Time    `json:"next_start_at,omitempty"` // when the rate permits the next start, if tokens is 0
	Circuit   *LimitCircuit `json:"circuit,omitempty"`       // nil: it has none
}

// LimitCircuit is the state of a limit's circuit breaker.
type LimitCircuit struct {
	State    string     `json:"state"`              // closed, open, or half_open: probes may start
	Since    *time.Time `json:"since,omitempty"`    // when it opened
	ProbeAt  *time.Time `json:"probe_at,omitempty"` // when the first probe may start
	Probes   int        `json:"probes"`             // jobs that probe now
	Failures int        `json:"failures"`           // closed: those that count now
}

// LimitDetail is a limit, and who uses it.
type LimitDetail struct {
	Limit
	Queues      []LimitQueue `json:"queues"` // that use it, by name
	MoreQueues  int          `json:"more_queues,omitempty"`
	Keys        []LimitKey   `json:"keys"`                // those with the most running and waiting jobs, the largest first
	MoreKeys    int          `json:"more_keys,omitempty"` // further ones
	Partial     bool         `json:"partial,omitempty"`   // there are so many that not all were counted by key
	Holders     []ActiveJob  `json:"holders"`             // jobs that run, those that have run longest
	MoreHolders int          `json:"more_holders,omitempty"`
}

// LimitQueue is a queue whose jobs use a limit.
type LimitQueue struct {
	Queue   string `json:"queue"`
	Jobs    bool   `json:"only_some_jobs,omitempty"` // the queue does not name it, but jobs of the queue do
	Waiting int    `json:"waiting"`
}

// LimitKey is how much of a limit a key uses.
type LimitKey struct {
	Key     string `json:"limit_key"`
	Running int    `json:"running"`
	Waiting int    `json:"waiting"`
	Blocked bool   `json:"blocked,omitempty"` // a bound of the key permits no start now
}

// LimitList is a page of the limits, by name.
type LimitList struct {
	Limits []Limit `json:"limits"`
	Next   string  `json:"next,omitempty"` // After of the next page; "" means that this is the last one
}

// Blocks reports whether the limit permits no start of any job now.
func (l *Limit) Blocks() bool {
	return l.Paused || l.Total != nil && int64(l.Running) >= *l.Total || l.Tokens != nil && *l.Tokens == 0 ||
		l.Circuit != nil && l.Circuit.State == "open"
}

// LimitOf returns a limit of the ledger as the API shows it.
func LimitOf(v *ledger.LimitView, at time.Time) Limit {
	l := Limit{
		Name: v.Name, Total: slotsOf(v.Total), PerKey: slotsOf(v.PerKey),
		Changed: v.Changed, Paused: v.Paused, Running: v.Running, Waiting: v.Waiting, FullSince: timeOf(v.FullSince),
	}
	l.Burst, l.BurstPerKey = v.Bursts()
	if v.Rate.IsSet() {
		l.Rate, l.Tokens = v.Rate.String(), &v.Tokens
		l.NextStart = timeOf(v.NextToken)
	}
	if v.RatePerKey.IsSet() {
		l.RatePerKey = v.RatePerKey.String()
	}
	c := &v.Limit.Circuit
	if c.OpenAfter == 0 {
		return l
	}
	l.OpenAfter, l.Within, l.On = c.OpenAfter, c.Within.Milliseconds(), c.On
	l.HalfOpen, l.ProbeAfter = uint32(c.Probes()), c.Pause().Milliseconds()
	l.Circuit = &LimitCircuit{State: "closed", Failures: v.Circuit.Failures}
	if !v.Circuit.OpenedAt.IsZero() {
		l.Circuit = &LimitCircuit{State: "open", Since: timeOf(v.Circuit.OpenedAt), ProbeAt: timeOf(v.Circuit.ProbeAt), Probes: v.Circuit.Probes}
		if !at.Before(v.Circuit.ProbeAt) {
			l.Circuit.State = "half_open"
		}
	}
	return l
}

// LimitDetailOf returns a limit and its users as the API shows them. timeout is the one of jobs
// that set none.
func LimitDetailOf(u *ledger.LimitUsage, at time.Time, timeout time.Duration) LimitDetail {
	d := LimitDetail{Limit: LimitOf(&u.LimitView, at), MoreQueues: u.MoreQueues, MoreKeys: u.MoreKeys, Partial: u.Partial}
	for _, q := range u.Queues {
		d.Queues = append(d.Queues, LimitQueue{Queue: q.Queue, Jobs: !q.Named, Waiting: q.Waiting})
	}
	for _, k := range u.Keys {
		d.Keys = append(d.Keys, LimitKey(k))
	}
	for i := range u.Holders {
		d.Holders = append(d.Holders, NewActiveJob(&u.Holders[i], timeout))
	}
	d.MoreHolders = max(0, u.Running-len(d.Holders))
	return d
}

// slotsOf returns a bound as the API shows it.
func slotsOf(s job.Slots) *int64 {
	if s == job.Unbounded {
		return nil
	}
	return new(int64(s))
}

// timeOf returns a pointer to a time, nil for the zero time.
func timeOf(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
