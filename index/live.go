package index

import (
	"context"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// maxLooked is how many documents of jobs that have not ended a page may look at. The rest of the
// jobs are those of the next page.
const maxLooked = 50_000

// liveSearch is what the sources of one search share that have documents of jobs that had not ended.
//
// The ledger may be at a later entry than the documents, and another one whenever it is asked. A document only
// says that its job may match; whether it does is decided by the ledger's job, with the labels of the document.
// A job that has ended in between is found here, because the sources of ended jobs do not have it yet.
type liveSearch struct {
	index   *Index
	ctx     context.Context
	since   time.Time // of the ledger; the sources of ended jobs have all that ended before
	ahead   bool      // the ledger is behind the index, and may not know yet that a job has ended
	looked  int       // how many documents were looked at
	stalled bool      // the index did not take changes within the time that a search waits for them
	lacks   bool      // jobs may be missing that have ended since, and that the ledger has forgotten
}

// liveSource has documents of jobs that had not ended.
type liveSource struct {
	segment.Source
	*liveSearch
	current map[int]*job.Document // documents that match, as they are now, by number
}

// Document implements [segment.Source].
func (s *liveSource) Document(number int) (*job.Document, error) { return s.current[number], nil }

// Find implements [segment.Source].
func (s *liveSource) Find(q *query.Query, from, to *segment.Cursor, limit int) (hits []segment.Hit, last *segment.Cursor, err error) {
	stored := &query.Query{Where: query.Relax(q.Where, changing), Sort: q.Sort}
	for step := limit; ; step = min(2*step, 4096) {
		found, _, err := s.Source.Find(stored, from, to, step)
		if err != nil {
			return nil, nil, err
		}
		docs := make([]*job.Document, len(found))
		for i := range found {
			if docs[i], err = s.Source.Document(found[i].Number); err != nil {
				return nil, nil, err
			}
		}
		present := s.present(docs)
		for i := range found {
			if d := present[i]; d != nil && q.Match(d) && q.Sort.Value(d) == found[i].Value {
				s.current[found[i].Number] = d
				if hits = append(hits, found[i]); len(hits) == limit {
					return hits, nil, nil
				}
			}
		}
		if len(found) < step {
			return hits, nil, nil
		}
		from = &found[len(found)-1].Cursor
		if s.looked += len(found); s.looked >= maxLooked {
			return hits, from, nil
		}
	}
}

// present returns the documents of jobs as these are now; nil for a job that was removed, or that ended before
// the search began.
func (s *liveSearch) present(docs []*job.Document) []*job.Document {
	present := make([]*job.Document, len(docs))
	var ended map[ledger.JobPlace]bool
	if s.ahead {
		ended = s.index.haveEnded(docs)
	}
	var forgotten []int
	var asOf uint64
	for start := 0; start < len(docs); start += readStep {
		part := docs[start:min(start+readStep, len(docs))]
		s.index.ledger.View(func(l *ledger.Ledger) {
			asOf = l.Index()
			for i, d := range part {
				now, kept := l.Document(d.ID)
				switch {
				case !kept:
					if _, known := l.Known(d.ID); known && !l.Removed(d.ID) {
						forgotten = append(forgotten, start+i)
					}
				case !now.Created.Equal(d.Created): // a later job with its id
				case now.State.Ended() && now.Ended.Before(s.since), ended[placeOf(d)]: // the ended one is found
				default:
					now.SetLabels(d.Labels())
					present[start+i] = &now
				}
			}
		})
	}
	s.addForgotten(docs, present, forgotten, asOf)
	return present
}

// addForgotten sets those of the present documents, by their positions, of jobs that ended since the search began and
// that the ledger has forgotten already, up to the entry asOf.
func (s *liveSearch) addForgotten(docs, present []*job.Document, positions []int, asOf uint64) {
	if len(positions) == 0 {
		return
	}
	x := s.index
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mark.Index < asOf && !s.stalled {
		x.mu.Unlock()
		x.refresh(s.ctx)
		x.mu.Lock()
		s.stalled = x.mark.Index < asOf
	}
	others := make(map[ledger.JobPlace]int) // that are not in memory
	var places []segment.Cursor
	for _, i := range positions {
		switch d := x.inMemory(placeOf(docs[i])); {
		case d == nil, !d.State.Ended():
			others[placeOf(docs[i])] = i
			places = append(places, cursorOf(placeOf(docs[i])))
		case !d.Ended.Before(s.since):
			present[i] = d
		}
	}
	s.lacks = s.lacks || s.stalled && len(others) > 0
	places = sortPlaces(places)
	for _, f := range slices.Clone(x.ended) {
		if _, last := f.Span(query.Sort{ByEnd: true}); last < (query.Sort{ByEnd: true}).Floor(s.since.UnixNano()) {
			continue
		}
		err := f.documents(places, func(d *job.Document) {
			if !d.Ended.Before(s.since) {
				present[others[placeOf(d)]] = d
			}
		})
		if err != nil {
			x.drop(f, err)
		}
	}
}

// haveEnded reports, by place, which of the documents are of jobs that have ended, by the documents of the index.
func (x *Index) haveEnded(docs []*job.Document) map[ledger.JobPlace]bool {
	places := make([]segment.Cursor, len(docs))
	for i, d := range docs {
		places[i] = cursorOf(placeOf(d))
	}
	ended := make(map[ledger.JobPlace]bool)
	x.mu.Lock()
	defer x.mu.Unlock()
	for at, d := range x.documents(sortPlaces(places)) {
		ended[at] = d.State.Ended()
	}
	return ended
}

// isNewer reports whether a is a later document than b of a job that had not ended in both. A dispatch is first
// waiting or active; when it has failed, its job is delayed.
func isNewer(a, b *job.Document) bool {
	if a.Dispatches != b.Dispatches {
		return a.Dispatches > b.Dispatches
	}
	return a.State == job.Delayed && b.State != job.Delayed
}

// latest returns one document of each job, because a segment finds only one: the last one.
func latest(docs []*job.Document) []*job.Document {
	segment.Sort(docs)
	var unique []*job.Document
	for _, d := range docs {
		last := len(unique) - 1
		switch {
		case last < 0 || placeOf(unique[last]) != placeOf(d):
			unique = append(unique, d)
		case isNewer(d, unique[last]):
			unique[last] = d
		}
	}
	return unique
}
