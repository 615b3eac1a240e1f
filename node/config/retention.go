package config

import (
	"fmt"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
)

// Retention is how long the cluster keeps what is left of jobs that have ended; the same on
// every member. An operator can override each setting while the cluster runs.
type Retention struct {
	// Finished bounds the ledger's records of jobs that have ended.
	Finished RetentionBounds `toml:"finished"`
	// Failed bounds the dead letters.
	Failed RetentionBounds `toml:"failed"`
	// Results bounds the results, small and large.
	Results RetentionBounds `toml:"results"`
	// Events bounds the history.
	Events RetentionBounds `toml:"events"`
	// Logs bounds the logs of jobs.
	Logs RetentionBounds `toml:"logs"`
	// Index bounds the jobs that have ended and that each node finds.
	Index RetentionBounds `toml:"index"`
}

// RetentionBounds are the bounds of one kind of data; what exceeds one of them is removed,
// oldest first. Some kinds do not have all of them, see [job.RetentionKeys].
type RetentionBounds struct {
	// Age is how long it is kept, at least 1m. Default 0: that of the kind.
	Age time.Duration `toml:"age"`
	// Count is how many are kept. Default 0: that of the kind.
	Count int64 `toml:"count"`
	// Bytes is how much is kept. Default 0: that of the kind.
	Bytes int64 `toml:"bytes"`
}

// Settings returns the settings that are given.
func (r Retention) Settings() job.Retention {
	var given []job.RetentionSetting
	for kept, b := range [...]RetentionBounds{r.Finished, r.Failed, r.Results, r.Events, r.Logs, r.Index} {
		for bound, value := range [...]int64{int64(b.Age), b.Count, b.Bytes} {
			given = append(given, job.RetentionSetting{Key: job.RetentionKey{Kept: job.Kept(kept), Bound: job.Bound(bound)}, Value: value})
		}
	}
	return job.Retention(nil).With(given)
}

func (r Retention) validate() error {
	if err := job.ValidateRetention(r.Settings(), false); err != nil {
		return fmt.Errorf("retention.%w", err)
	}
	return nil
}
