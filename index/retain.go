package index

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// oldestEnd returns when a job may have ended at the earliest that is found, in Unix nanoseconds.
func (x *Index) oldestEnd() (oldest int64) {
	x.ledger.View(func(l *ledger.Ledger) {
		oldest = l.Now().Add(-job.DefaultRetention.With(l.Retention().InForce()).Age(job.KeptIndex)).UnixNano()
	})
	return oldest
}

// retain removes the segments of ended jobs that are too old or too many, the oldest first.
func (x *Index) retain() {
	var limits job.Retention
	var now time.Time
	x.ledger.View(func(l *ledger.Ledger) { limits, now = job.DefaultRetention.With(l.Retention().InForce()), l.Now() })
	x.mu.Lock()
	defer x.mu.Unlock()
	last := func(f *file) int64 {
		_, high := f.Span(query.Sort{ByEnd: true})
		return high
	}
	slices.SortFunc(x.ended, func(a, b *file) int { return cmp.Compare(last(a), last(b)) })
	bytes, count := int64(0), int64(0)
	for _, f := range x.ended {
		bytes, count = bytes+f.size, count+int64(f.Count())
	}
	for len(x.ended) > 0 {
		f := x.ended[0]
		tooOld := last(f) < now.Add(-limits.Age(job.KeptIndex)).UnixNano()
		tooMany := bytes > limits.Get(job.KeptIndex, job.BoundBytes) || count > limits.Get(job.KeptIndex, job.BoundCount)
		if !tooOld && !tooMany && f.Count() > 0 {
			return
		}
		x.ended = x.ended[1:]
		bytes, count = bytes-f.size, count-int64(f.Count())
		x.remove(f)
	}
}

// lowSpace reports whether the disk has little free space, or would have with this many more bytes in use.
func (x *Index) lowSpace(more int64) bool { return x.cfg.LowSpace != nil && x.cfg.LowSpace(more) }

// shedParts is the part of the files, as a divisor, that gives way at a time to a disk with little
// free space.
const shedParts = 8

// errLowSpace is the failure of an index that has given way.
var errLowSpace = errors.New("the disk has little free space, which is left to jobs: the index continues when there is more")

// shed deletes the oldest segments of ended jobs. Without such segments, the index stops.
func (x *Index) shed() error {
	x.mu.Lock()
	if len(x.ended) == 0 {
		x.mu.Unlock()
		return errLowSpace
	}
	n := (len(x.ended) + shedParts - 1) / shedParts
	for _, f := range x.ended[:n] { // retain has sorted them
		x.gap.shed += f.size
		x.remove(f)
	}
	x.ended = x.ended[n:]
	x.mu.Unlock()
	x.log.Warn("index files deleted, because the disk has little free space", "files", n)
	return x.save()
}

// unshed makes the index read all jobs and all history again, when the disk has space for twice what shed has
// deleted: merging takes some, too.
func (x *Index) unshed() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if shed := x.gap.shed; shed > 0 && !x.scanning && !x.lowSpace(2*shed) {
		x.incomplete = true
	}
}
