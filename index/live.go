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

// maxLooked is the number of documents of jobs that have not ended after which a page ends. The next page
// looks at the rest.
const maxLooked = 50_000

// liveSearch is shared by the live sources of one search: the sources of jobs that had not ended when they were
// indexed.
//
// The ledger may have advanced since then, and advances between two calls of View. Therefore a document only shows
// that its job may match. The ledger's job, with the labels of the document, decides whether it does.
// A job that has ended since the search began is found here, because the sources of ended jobs lack it.
type liveSearch struct {
	index   *Index
	ctx     context.Context
	since   time.Time // ledger time; the sources of ended jobs have all jobs that ended before it
	ahead   bool      // the ledger is behind the index, and may not know yet that a job has ended
	looked  int       // how many documents were looked at
	stalled bool      // the index did not take changes within the time that a search waits for them
	lacks   bool      // jobs may be missing: they ended after since, and the ledger has forgotten them
}

// liveSource is a source of jobs that had not ended when they were indexed.
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

// present returns the current documents of the jobs of docs, in the same order: nil for a job that was removed,
// or that ended before the search began.
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

// addForgotten sets present at the given positions: the ledger had forgotten the jobs of these docs at the entry
// asOf. It takes the documents of jobs that ended since the search began from the index.
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
	others := make(map[ledger.JobPlace]int) // positions of the jobs that are not in memory
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

// haveEnded reports by place which jobs of docs have ended according to the index.
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
