package index

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// TestIndex_Retention checks that each bound removes segments of ended jobs, the oldest first, and no other
// job.
func TestIndex_Retention(t *testing.T) {
	for bound, limit := range map[job.Bound]int64{job.BoundAge: int64(time.Hour), job.BoundCount: 1, job.BoundBytes: job.MinRetentionBytes} {
		t.Run(fmt.Sprint(bound), func(t *testing.T) {
			t.Parallel()
			y := newReplica(t, 200)
			inSegments := func() (jobs int) {
				y.index.mu.Lock()
				defer y.index.mu.Unlock()
				for _, f := range y.index.ended {
					f.size = job.MinRetentionBytes + 1 // as if it were so large
					jobs += f.Count()
				}
				return jobs
			}
			for inSegments() < 2 { // more than the bound of the count
				y.step()
				y.check(0)
			}
			y.index.mu.Lock()
			oldest := slices.MinFunc(y.index.ended, func(a, b *file) int { return compareTime(lastEnd(a), lastEnd(b)) })
			y.index.mu.Unlock()
			if bound == job.BoundAge {
				y.at.At = y.at.At.Add(time.Hour)
			}
			y.apply(&ledger.SetRetention{Settings: []job.RetentionSetting{{Key: job.RetentionKey{Kept: job.KeptIndex, Bound: bound}, Value: limit}}})
			y.await("the oldest segment is removed", func(Status) bool {
				inSegments()
				y.index.mu.Lock()
				defer y.index.mu.Unlock()
				return oldest.removed
			})
			y.checkUnended()
		})
	}
}

// TestIndex_Age checks that no job is found that ended too long ago, although its document is still in memory or
// in a segment with others.
func TestIndex_Age(t *testing.T) {
	y := newReplica(t, 204)
	for range 60 {
		y.step()
	}
	y.at.At = y.at.At.Add(30 * time.Minute)
	for range 30 {
		y.step()
	}
	y.check(20)
	_, before := y.find("state:completed,failed,cancelled,expired", nil, 100)
	y.at.At = y.at.At.Add(40 * time.Minute)
	y.apply(&ledger.SetRetention{Settings: []job.RetentionSetting{{Key: job.RetentionKey{Kept: job.KeptIndex, Bound: job.BoundAge}, Value: int64(time.Hour)}}})
	y.check(100)
	_, found := y.find("state:completed,failed,cancelled,expired", nil, 100)
	if len(found) == 0 || len(found) >= len(before) {
		t.Errorf("%d jobs are found, %d before", len(found), len(before))
	}
	y.checkUnended()
}

func lastEnd(f *file) int64 {
	_, last := f.Span(query.Sort{ByEnd: true})
	return last
}

// checkUnended checks that the jobs that have not ended are found.
func (y *replica) checkUnended() {
	y.t.Helper()
	y.check(0)
	_, found := y.find("-state:completed,failed,cancelled,expired", nil, 100)
	want := 0
	for _, d := range y.want {
		if !d.State.Ended() {
			want++
		}
	}
	if len(found) != want {
		y.t.Errorf("%d jobs that have not ended are found, want %d", len(found), want)
	}
}

// TestIndex_LowSpace checks that the index deletes its files and stops while the disk has little free
// space, continues without them when there is more, and has all jobs again when there is enough for them.
func TestIndex_LowSpace(t *testing.T) {
	y := newReplica(t, 201)
	for y.index.Status().Files == 0 {
		y.step()
		y.check(0)
	}
	y.low.Store(true)
	y.await("the index has given way", func(s Status) bool { return strings.Contains(s.Failure, "little free space") })
	y.index.mu.Lock()
	if n := len(y.index.ended); n > 0 {
		t.Errorf("%d segments of ended jobs are kept", n)
	}
	y.index.mu.Unlock()
	for range 30 { // jobs go on
		y.step()
	}
	if err := y.index.unavailable(new(y.index.Status())); err == nil {
		t.Error("the index does not say that it lacks jobs")
	}
	y.space.Store(0)
	y.low.Store(false)
	for range 2 {
		y.await("the index continues", func(s Status) bool { return s.Failure == "" && !s.Scanning && s.Rebuilt == 0 && s.Shed > 0 })
		if w := y.index.Warnings(); len(w) != 1 || !strings.Contains(w[0], "more are free") {
			t.Errorf("warnings: %q", w)
		}
		y.stop()
		y.restart(y.newest(y.at.Index))
	}
	y.space.Store(math.MaxInt64)
	y.checkComplete()
}

// checkComplete checks that all jobs are found when the index is rebuilt.
func (y *replica) checkComplete() {
	y.t.Helper()
	found := y.rebuilt()
	y.checkUnended()
	want := slices.Collect(maps.Values(y.want))
	for _, docs := range [][]*job.Document{want, found} {
		slices.SortFunc(docs, func(a, b *job.Document) int { return placeOf(a).Compare(placeOf(b)) })
	}
	y.checkRebuilt(want, found)
}

// TestIndex_CursorsAreStable reads pages while jobs come, change and go: none is found twice, and each that was
// there all the time is found.
func TestIndex_CursorsAreStable(t *testing.T) {
	for _, sort := range []string{"created", "-created"} {
		t.Run(sort, func(t *testing.T) {
			t.Parallel()
			y := newReplica(t, 202)
			for range 60 {
				y.step()
			}
			y.check(1)
			var before []ledger.JobPlace
			for at := range y.want {
				before = append(before, at)
			}
			q, err := query.Parse("sort:"+sort, query.Options{Now: epoch})
			if err != nil {
				t.Fatal(err)
			}
			found, pages := make(map[ledger.JobPlace]int), 0
			for after := (*segment.Cursor)(nil); pages == 0 || after != nil; pages++ {
				page, err := y.index.Find(context.Background(), q, after, 7)
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range page.Documents {
					found[placeOf(d)]++
				}
				after = page.Next
				if pages < 100 {
					y.step()
				}
			}
			for at, n := range found {
				if n > 1 {
					t.Errorf("job %s is found %d times", at.ID, n)
				}
			}
			for _, at := range before {
				if y.want[at] != nil && found[at] == 0 {
					t.Errorf("job %s is not found", at.ID)
				}
			}
			if pages < 10 {
				t.Errorf("%d pages", pages)
			}
		})
	}
}

// TestIndex_FullMemory checks that an index whose spool has more documents than it keeps in memory makes
// segments of them, and goes on.
func TestIndex_FullMemory(t *testing.T) {
	y := newReplica(t, 203)
	y.index.mu.Lock()
	y.index.flushAt, y.index.flushLiveAt = 1<<20, 1<<20
	y.index.mu.Unlock()
	for range 120 {
		y.step()
	}
	y.check(0)
	if n := y.index.Status().Documents + y.index.Status().Live; n < maxInMemory*40 {
		t.Fatalf("%d documents are in memory", n)
	}
	y.index.Sync(y.ledger.Index())
	y.snapshot()
	y.stop()
	y.restart(y.newest(y.at.Index)) // with the bound of the other tests
	y.step()
	y.await("the index has the last entry", func(s Status) bool { return s.Index == y.ledger.Index() })
	y.check(5)
}
