package index

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// version is a job from an entry on, until the next one; nil: it was removed.
type version struct {
	from     uint64 // index of the entry
	document *job.Document
	unknown  bool // it ended, and was forgotten in the same entry
}

// noteVersions notes which jobs the last entry has changed.
func (y *replica) noteVersions() {
	for at, all := range y.versions {
		if last := all[len(all)-1]; last.document != nil && y.want[at] == nil {
			y.versions[at] = append(all, version{from: y.at.Index})
		}
	}
	for at, d := range y.want {
		if _, kept := y.ledger.Document(d.ID); !kept && !d.State.Ended() {
			y.versions[at] = append(y.versions[at], version{from: y.at.Index, unknown: true})
			delete(y.want, at)
		} else if all := y.versions[at]; len(all) == 0 || !reflect.DeepEqual(all[len(all)-1].document, d) {
			y.versions[at] = append(all, version{from: y.at.Index, document: d})
		}
	}
}

// matches reports whether a job matches a query after each entry from one to another, and after any of them.
func (y *replica) matches(at ledger.JobPlace, q *query.Query, from, to uint64) (always, once bool) {
	always = true
	covered := false
	all := y.versions[at]
	for i, v := range all {
		if v.from > to || i+1 < len(all) && all[i+1].from <= from {
			continue
		}
		covered = covered || v.from <= from
		match := v.document != nil && q.Match(v.document)
		always, once = always && match, once || match || v.unknown
	}
	return always && covered, once
}

// list returns all jobs that a query finds, in pages, the position of the index before the first one, and whether a
// page says that it may lack some.
func (y *replica) list(text string, limit int) (q *query.Query, found []*job.Document, from uint64, lacks bool) {
	q, err := query.Parse(text, query.Options{Now: epoch.Add(time.Hour)})
	if err != nil {
		y.t.Fatalf("%q: %v", text, err)
	}
	for after := (*segment.Cursor)(nil); ; {
		page, err := y.index.Find(context.Background(), q, after, limit)
		if err != nil {
			y.t.Fatalf("%q: %v", text, err)
		}
		if after == nil {
			from = page.Status.Index
		}
		found = append(found, page.Documents...)
		q.Sort, lacks = page.Sort, lacks || page.Lacks
		if after = page.Next; after == nil {
			return q, found, from, lacks
		}
	}
}

// checkMoving compares a list with what its jobs were while it was read: those that matched all the time are
// found, each once, unless the list says that it may lack some, and no others than those that matched at some time.
func (y *replica) checkMoving(text string, q *query.Query, found []*job.Document, lacks bool, from, to uint64) {
	y.t.Helper()
	listed := make(map[ledger.JobPlace]bool)
	for _, d := range found {
		at := placeOf(d)
		if listed[at] && !y.wasRetried(at, from, to) {
			y.t.Fatalf("%q lists job %s twice", text, d.ID)
		}
		listed[at] = true
		if _, once := y.matches(at, q, from, to); !once {
			y.t.Fatalf("%q lists job %s, which does not match from entry %d to %d: %+v", text, d.ID, from, to, d)
		}
	}
	for at := range y.versions {
		if always, _ := y.matches(at, q, from, to); always && !listed[at] && !lacks && !(q.Sort.ByEnd && y.wasRetried(at, from, to)) {
			y.t.Fatalf("%q lacks job %s, which matches from entry %d to %d: %s", text, at.ID, from, to, y.life(at))
		}
	}
}

// life returns the versions of a job as text.
func (y *replica) life(at ledger.JobPlace) string {
	var text strings.Builder
	for _, v := range y.versions[at] {
		fmt.Fprintf(&text, "\n%d: %+v", v.from, v.document)
	}
	return text.String()
}

// wasRetried reports whether a job that had ended was not ended later, between two entries.
func (y *replica) wasRetried(at ledger.JobPlace, from, to uint64) bool {
	ended := false
	for _, v := range y.versions[at] {
		if v.from > to {
			break
		}
		if v.document == nil {
			continue
		}
		if ended && !v.document.State.Ended() && v.from > from {
			return true
		}
		ended = v.document.State.Ended()
	}
	return false
}

// TestIndex_Moving reads lists in pages while jobs come, run, fail, end, and are retried and removed.
func TestIndex_Moving(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			y := newReplica(t, 800+seed)
			y.versions = make(map[ledger.JobPlace][]version)
			for range 20 {
				y.step()
			}
			for range 40 {
				text, limit := y.randomQuery(), 1+y.r.IntN(30)
				done, group := make(chan struct{}), sync.WaitGroup{}
				group.Go(func() {
					for range 20 {
						select {
						case <-done:
							return
						default:
							y.step()
						}
					}
				})
				q, found, from, lacks := y.list(text, limit)
				close(done)
				group.Wait()
				y.checkMoving(text, q, found, lacks, from, y.at.Index)
			}
			y.check(8)
		})
	}
}

// TestIndex_Lagging reads lists from an index that is behind its ledger, in which each job has changed since, and
// changes while pages are read.
func TestIndex_Lagging(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			y := newReplica(t, 900+seed)
			y.versions = make(map[ledger.JobPlace][]version)
			for range 8 {
				for range 10 {
					y.step()
				}
				y.check(0)
				y.checkStalled()
			}
			y.check(8)
		})
	}
}

// TestIndex_ChangesAfterSnapshot checks what a search finds whose jobs change after it has taken the documents to
// search, whether the index takes the changes or not.
func TestIndex_ChangesAfterSnapshot(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			y := newReplica(t, 1000+seed)
			y.versions = make(map[ledger.JobPlace][]version)
			if seed%2 == 0 { // most jobs are forgotten soon after their end
				y.apply(&ledger.SetRetention{Settings: []job.RetentionSetting{{Key: job.RetentionKey{Kept: job.KeptFinished, Bound: job.BoundCount}, Value: 2}}})
			}
			for range 12 {
				for range 10 {
					y.step()
				}
				y.check(0)
				text := y.randomQuery()
				q, err := query.Parse(text, query.Options{Now: epoch.Add(time.Hour)})
				if err != nil {
					t.Fatal(err)
				}
				status := y.index.Status()
				q.Sort.Since = status.Time.UnixNano()
				sources, search, files := y.index.sources(t.Context(), q, status.Time)
				for range 1 + y.r.IntN(20) {
					y.step()
				}
				if y.r.IntN(2) == 0 {
					y.check(0)
				}
				page, err := segment.Search(t.Context(), q, nil, 10_000, sources...)
				y.index.release(files)
				if err != nil {
					t.Fatal(err)
				}
				y.checkMoving(text, q, page.Documents, search.lacks, status.Index, y.at.Index)
			}
		})
	}
}

// TestLatest checks that of several documents of a job a merged segment has the last one.
func TestLatest(t *testing.T) {
	document := func(dispatches uint32, state job.State, message string) *job.Document {
		d := &job.Document{ID: job.ID{1}, Created: epoch, Dispatches: dispatches, State: state}
		if message != "" {
			d.Fault = &job.Fault{Message: message}
		}
		return d
	}
	life := []*job.Document{
		document(1, job.Waiting, ""), document(1, job.Delayed, "a"), document(2, job.Active, "a"), document(2, job.Delayed, "b"), document(4, job.Waiting, "c"),
	}
	other := &job.Document{ID: job.ID{2}, Created: epoch, Dispatches: 9}
	for last := range life {
		for range 10 {
			docs := append(slices.Clone(life[:last+1]), other)
			rand.Shuffle(len(docs), func(i, k int) { docs[i], docs[k] = docs[k], docs[i] })
			if got := latest(docs); len(got) != 2 || got[0] != life[last] || got[1] != other {
				t.Fatalf("the latest of %d documents are %+v", last+1, got)
			}
		}
	}
}

// checkStalled reads a list while the index takes no changes.
func (y *replica) checkStalled() {
	y.t.Helper()
	stalled := make(chan struct{})
	y.stalled.Store(&stalled)
	defer close(stalled)
	defer y.stalled.Store(nil)
	for range 10 {
		y.step()
	}
	text := y.randomQuery()
	q, found, from, lacks := y.list(text, 100)
	y.checkMoving(text, q, found, lacks, from, y.at.Index)
}
