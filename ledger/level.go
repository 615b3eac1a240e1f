package ledger

import (
	"time"

	"github.com/yardmaster-dev/yardmaster/internal/duration"
)

// Level is the protocol level of this build. The ledger has the level of the newest build that
// has held its authority, see [Lead]; 0: an earlier one than 7. What entries do beyond what
// they did in earlier builds must depend on it, because members replay entries of an earlier
// build from different snapshots: they would differ if only some of them applied an entry in
// the new way.
const Level = 8

// level8 is the first level whose entries have three clocks, see [Clock], keep the ids of records
// with guards that became no jobs, see [Alias], move the next ticks of cron entries, and shorten the
// details of errors with [job.CutDetails], and name durations briefly in texts of events.
const level8 = 8

// Level returns the level of the ledger, see the constant [Level].
func (o *outbox) Level() uint8 { return o.level }

// longDurations reports whether texts of events have durations as earlier levels than 8 wrote them, "5m0s".
func (o *outbox) longDurations() bool { return o.level < level8 }

// durationText returns d as "5m", or as "5m0s" if long is set.
func durationText(d time.Duration, long bool) string {
	if long {
		return d.String()
	}
	return duration.Format(d)
}

// raiseLevel sets the level, unless it is higher already. Jobs are counted, and completed jobs forgotten
// before others, from the first level on that does so.
func (l *Ledger) raiseLevel(level uint8) {
	if level <= l.outbox.level {
		return
	}
	if l.outbox.level == 0 {
		l.jobs.accepted, l.jobs.removed = uint64(l.jobs.records.count), 0
		l.splitClasses()
	}
	l.outbox.level = level
}
