package api

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Values of Missed and Overlap of a cron entry.
const (
	CronSkip  = "skip"  // ticks that were missed, or that overlap a job, create no job
	CronOnce  = "once"  // all missed ticks together create one job
	CronAllow = "allow" // a tick creates a job although the last one has not ended
)

// Numbers of next ticks of a cron entry.
const (
	CronTicks    = 3 // unless the request sets another number
	MaxCronTicks = 100
)

// CronRequest names a cron entry.
type CronRequest struct {
	Name string `json:"name"`
}

// CronShowRequest names a cron entry that is to be shown.
type CronShowRequest struct {
	Name string `json:"name"`
	Next int    `json:"next"` // number of next ticks shown, 1 to [MaxCronTicks]; 0 means [CronTicks]
}

// CronListRequest selects a page of the cron entries.
type CronListRequest struct {
	After string `json:"after"` // last name of the previous page; "" is the first page
	Limit int    `json:"limit"` // entries of a page, 1 to 100; 0 means 50
}

// CronRunRequest names a cron entry whose job is to be enqueued now.
type CronRunRequest struct {
	Name  string `json:"name"`
	NewID string `json:"new_id"` // key of the job; "" means a new one
}

// CronChange describes a cron entry that is to be added or replaced.
type CronChange struct {
	Name     string          `json:"name"`
	Schedule string          `json:"schedule"`  // five or six fields, or such as @hourly or "@every 90s"
	Zone     string          `json:"time_zone"` // IANA name; "" means UTC
	Queue    string          `json:"queue"`
	Missed   string          `json:"missed"`  // [CronSkip] or [CronOnce]; "" means skip
	Overlap  string          `json:"overlap"` // [CronAllow] or [CronSkip]; "" means allow
	Replace  bool            `json:"replace"` // replace a different entry of this name
	Job      json.RawMessage `json:"job"`     // a [job.Spec]
}

// Cron is a cron entry.
type Cron struct {
	Name        string          `json:"name"`
	Schedule    string          `json:"schedule"`
	Zone        string          `json:"time_zone"`
	Queue       string          `json:"queue"`
	Job         json.RawMessage `json:"job"` // a [job.Spec]
	Missed      string          `json:"missed"`
	Overlap     string          `json:"overlap"`
	Declared    bool            `json:"declared"` // in the configuration of the nodes
	State       string          `json:"state"`    // running, paused, or ended (no more ticks)
	Next        *time.Time      `json:"next"`     // nil unless it is running
	Upcoming    []time.Time     `json:"upcoming"` // the next ticks, at most [CronTicks] unless the request sets another number, the first of them Next
	Ticks       []CronTick      `json:"ticks"`    // the same ticks, in the entry's time zone
	Last        *time.Time      `json:"last"`     // the last tick that created a job; nil means none did
	LastJob     *job.ID         `json:"last_job"`
	LastSkipped *SkippedTick    `json:"last_left_out"` // the last tick that created no job; nil means none
	Fired       uint64          `json:"fired"`
	Skipped     uint64          `json:"skipped"`      // because the last job had not ended
	Overdue     uint64          `json:"missed_count"` // because there was no authority
}

// CronTick is a next tick of a cron entry.
type CronTick struct {
	At    time.Time `json:"at"`
	Local string    `json:"local"`          // At in the entry's time zone, such as "2026-03-29T03:00:00+02:00"
	Note  string    `json:"note,omitempty"` // if clocks are set then: "skipped hour: runs at 03:00", "double hour: first" or "double hour: second"
}

// SkippedTick is why a tick created no job.
type SkippedTick struct {
	At     time.Time `json:"at"`            // the first, if several were missed
	Reason string    `json:"why"`           // overlap or missed
	Job    *job.ID   `json:"job,omitempty"` // the one that had not ended
}

// CronPage is a page of cron entries, by name.
type CronPage struct {
	Entries []Cron `json:"entries"`
	More    bool   `json:"more"` // there are further entries
}

// CronDetail is one cron entry with the state of its last job.
type CronDetail struct {
	Cron
	LastState string `json:"last_job_state,omitempty"` // "" means that there was no job, or that it is no longer in the ledger
}

// CronOf returns a cron entry of the ledger as the API shows it, without its next ticks.
func CronOf(v *ledger.CronView) Cron {
	c := Cron{
		Name: v.Name, Schedule: v.Schedule, Zone: cmp.Or(v.TimeZone, "UTC"), Queue: v.Queue, Job: v.Body, Declared: v.Declared,
		Missed: CronSkip, Overlap: CronAllow, State: CronState(v), Upcoming: []time.Time{}, Ticks: []CronTick{},
		Fired: v.Fired, Skipped: v.Skipped, Overdue: v.Missed,
	}
	if v.CatchUp {
		c.Missed = CronOnce
	}
	if v.NoOverlap {
		c.Overlap = CronSkip
	}
	if c.State == "running" {
		c.Next = &v.Next
	}
	if !v.Last.IsZero() {
		c.Last, c.LastJob = &v.Last, &v.LastJob
	}
	if v.LastUnfired.IsZero() {
		return c
	}
	c.LastSkipped = &SkippedTick{At: v.LastUnfired, Reason: "missed"}
	if v.UnfiredFor != (job.ID{}) {
		c.LastSkipped.Reason, c.LastSkipped.Job = "overlap", &v.UnfiredFor
	}
	return c
}

// CronState returns the state of a cron entry, as in [Cron].
func CronState(v *ledger.CronView) string {
	switch {
	case v.Paused:
		return "paused"
	case v.Next.IsZero():
		return "ended"
	}
	return "running"
}
