package api

import (
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// RetentionChange has the retention settings of the yard that change.
type RetentionChange struct {
	Finished RetentionAgeCount `json:"finished,omitzero"` // records of finished jobs
	Failed   RetentionBounds   `json:"failed,omitzero"`   // dead letters
	Results  RetentionAgeBytes `json:"results,omitzero"`
	Events   RetentionAgeBytes `json:"events,omitzero"`
	Logs     RetentionBounds   `json:"logs,omitzero"`
	Index    RetentionBounds   `json:"index,omitzero"` // jobs that have ended, on each node
}

// RetentionBounds are the bounds of one kind of data that change.
type RetentionBounds struct {
	AgeMS Setting[int64] `json:"age_ms,omitzero"`
	Count Setting[int64] `json:"count,omitzero"`
	Bytes Setting[int64] `json:"bytes,omitzero"`
}

// RetentionAgeCount are [RetentionBounds] of data whose bytes cannot be bounded.
type RetentionAgeCount struct {
	AgeMS Setting[int64] `json:"age_ms,omitzero"`
	Count Setting[int64] `json:"count,omitzero"`
}

// RetentionAgeBytes are [RetentionBounds] of data whose count cannot be bounded.
type RetentionAgeBytes struct {
	AgeMS Setting[int64] `json:"age_ms,omitzero"`
	Bytes Setting[int64] `json:"bytes,omitzero"`
}

// QueueRetentionChange has the retention settings of a queue that change.
type QueueRetentionChange struct {
	Finished RetentionAgeCount `json:"finished,omitzero"` // records of finished jobs
	Failed   RetentionAgeCount `json:"failed,omitzero"`   // dead letters
	Results  QueueRetentionAge `json:"results,omitzero"`
}

// QueueRetentionAge is the age of one kind of data of a queue, if it changes.
type QueueRetentionAge struct {
	AgeMS Setting[int64] `json:"age_ms,omitzero"`
}

// Settings is [RetentionChange.Settings] for a queue.
func (c *QueueRetentionChange) Settings() ([]job.RetentionSetting, error) {
	all := RetentionChange{
		Finished: c.Finished,
		Failed:   RetentionBounds{AgeMS: c.Failed.AgeMS, Count: c.Failed.Count},
		Results:  RetentionAgeBytes{AgeMS: c.Results.AgeMS},
	}
	return all.Settings()
}

// Setting returns the setting of a key, nil if the yard has none.
func (c *RetentionChange) Setting(key job.RetentionKey) *Setting[int64] {
	return [...][3]*Setting[int64]{
		job.KeptFinished: {job.BoundAge: &c.Finished.AgeMS, job.BoundCount: &c.Finished.Count},
		job.KeptFailed:   {job.BoundAge: &c.Failed.AgeMS, job.BoundCount: &c.Failed.Count, job.BoundBytes: &c.Failed.Bytes},
		job.KeptResults:  {job.BoundAge: &c.Results.AgeMS, job.BoundBytes: &c.Results.Bytes},
		job.KeptEvents:   {job.BoundAge: &c.Events.AgeMS, job.BoundBytes: &c.Events.Bytes},
		job.KeptLogs:     {job.BoundAge: &c.Logs.AgeMS, job.BoundCount: &c.Logs.Count, job.BoundBytes: &c.Logs.Bytes},
		job.KeptIndex:    {job.BoundAge: &c.Index.AgeMS, job.BoundCount: &c.Index.Count, job.BoundBytes: &c.Index.Bytes},
	}[key.Kept][key.Bound]
}

// Settings returns the changes as the ledger takes them. The error is a
// [*job.InvalidError].
func (c *RetentionChange) Settings() (settings []job.RetentionSetting, err error) {
	for _, key := range job.RetentionKeys {
		value, given := c.Setting(key).Get()
		if !given {
			continue
		}
		s := job.RetentionSetting{Key: key}
		if value != nil {
			if *value < 1 {
				return nil, &job.InvalidError{Reason: fmt.Sprintf("%s is %d; must be positive, or null to reset it", key, *value)}
			}
			if s.Value = *value; key.Bound == job.BoundAge {
				s.Value = min(*value, 2*job.MaxDuration.Milliseconds()) * int64(time.Millisecond)
			}
		}
		settings = append(settings, s)
	}
	return settings, nil
}

// RetentionRequest asks for the settings of one queue, or of the yard with a page of the
// queues that have settings of their own.
type RetentionRequest struct {
	Queue string `json:"queue"` // "" means the yard
	Limit int    `json:"limit"` // queues of a page, 1 to 1000; 0 means 1000
	After string `json:"after"` // Next of the previous page; "" means the first page
}

// Retention is how long the yard, or one queue, keeps what is left of ended jobs.
type Retention struct {
	Settings []RetentionSetting `json:"settings"`       // in force
	Queues   []QueueRetention   `json:"queues"`         // that have settings of their own, by name; none if the request names a queue
	Next     string             `json:"next,omitempty"` // After of the next page; "" means that this is the last one
	// NotApplied is why not all streams have the settings in force, or are not known to
	// have them, after a change: they are kept, and retried. "" means that they have.
	NotApplied string `json:"not_applied,omitempty"`
}

// QueueRetention has the settings of a queue that differ from the yard's.
type QueueRetention struct {
	Queue    string             `json:"queue"`
	Settings []RetentionSetting `json:"settings"`
}

// RetentionSetting is one retention setting.
type RetentionSetting struct {
	Name  string `json:"name"`  // such as "finished.age"
	Value int64  `json:"value"` // in Unit; 0 means that there is no such bound
	Unit  string `json:"unit"`  // ms, bytes or items: records, dead letters, or messages with log lines
	// From is what determines the value: default, file, operator or queue. The default
	// of bytes is the size that the streams were created with; Value is then 0.
	From string `json:"from"`
	File *int64 `json:"file,omitempty"` // the file's value, if an operator overrides it
	Yard *int64 `json:"yard,omitempty"` // the yard's value, if the settings are those of one queue, which overrides it
}

// Values of [RetentionSetting.From].
const (
	FromDefault  = "default"
	FromFile     = "file"
	FromOperator = "operator"
	FromQueue    = "queue"
)

// RetentionOf returns the retention settings of the ledger as the API shows them.
func RetentionOf(settings ledger.RetentionSettings) (inForce []RetentionSetting) {
	for _, key := range job.RetentionKeys {
		declared, set := settings.Declared.Get(key.Kept, key.Bound), settings.Set.Get(key.Kept, key.Bound)
		switch {
		case set != 0:
			s := retentionSetting(key, set, FromOperator)
			if declared != 0 {
				file := retentionSetting(key, declared, FromFile)
				s.File = &file.Value
			}
			inForce = append(inForce, s)
		case declared != 0:
			inForce = append(inForce, retentionSetting(key, declared, FromFile))
		default:
			inForce = append(inForce, retentionSetting(key, job.DefaultRetention.Get(key.Kept, key.Bound), FromDefault))
		}
	}
	return inForce
}

// QueueRetentionOf returns the settings in force for a queue: its own ones, and the yard's
// for the rest.
func QueueRetentionOf(settings ledger.RetentionSettings, own job.Retention) []RetentionSetting {
	inForce := RetentionOf(settings)
	for _, s := range OwnRetention(own) {
		for i := range inForce {
			if inForce[i].Name == s.Name {
				s.Yard = new(inForce[i].Value)
				inForce[i] = s
			}
		}
	}
	return inForce
}

// OwnRetention returns the settings that a queue has itself.
func OwnRetention(own job.Retention) (settings []RetentionSetting) {
	for _, s := range own {
		settings = append(settings, retentionSetting(s.Key, s.Value, FromQueue))
	}
	return settings
}

// retentionSetting returns a setting whose value is in nanoseconds if it is an age.
func retentionSetting(key job.RetentionKey, value int64, from string) RetentionSetting {
	s := RetentionSetting{Name: key.String(), Value: value, Unit: "items", From: from}
	switch key.Bound {
	case job.BoundAge:
		s.Value, s.Unit = time.Duration(value).Milliseconds(), "ms"
	case job.BoundBytes:
		s.Unit = "bytes"
	}
	return s
}

// StreamStatus is how full a stream of the yard is.
type StreamStatus struct {
	Stream        string     `json:"stream"`
	Messages      uint64     `json:"messages"`
	LimitMessages uint64     `json:"limit_messages"` // 0 means no limit
	Bytes         uint64     `json:"bytes"`
	LimitBytes    uint64     `json:"limit_bytes"`      // 0 means no limit
	MaxAgeMS      int64      `json:"max_age_ms"`       // 0 means no limit
	WhenFull      string     `json:"when_full"`        // refuses or evicts, the oldest first
	Oldest        *time.Time `json:"oldest,omitempty"` // when the oldest message was stored, which goes next
}

// Values of [StreamStatus.WhenFull].
const (
	Refuses = "refuses"
	Evicts  = "evicts"
)

// FinishedStatus is how many records of finished jobs the ledger has.
type FinishedStatus struct {
	Records int        `json:"records"` // of queues without a setting of their own
	Limit   int        `json:"limit"`
	Own     int        `json:"own"`              // of the other queues, together at most [job.MaxFinished]
	Oldest  *time.Time `json:"oldest,omitempty"` // when the first of Records ended, which goes next
}
