package index

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// rebuildRetryAfter is the time after which a request for a job that the index may lack is to be repeated.
const rebuildRetryAfter = 5 * time.Second

// Page is a page of the jobs that a query finds.
type Page struct {
	segment.Page
	Status Status // of the index, before the page was read
}

// Find returns the first jobs that match a query in its order: at most limit of those that
// follow the cursor after, unless it is nil. It waits for a moment until the index has what the
// ledger has now.
func (x *Index) Find(ctx context.Context, q *query.Query, after *segment.Cursor, limit int) (*Page, error) {
	if err := x.closed(); err != nil {
		return nil, err
	}
	x.refresh(ctx)
	for {
		page := &Page{Status: x.Status()}
		sources, files := x.sources(q)
		found, err := segment.Search(ctx, q, after, limit, sources...)
		x.release(files)
		if err == nil {
			page.Page = *found
			return page, nil
		}
		if !errors.Is(err, segment.ErrDamaged) || !x.dropDamaged(err) {
			return nil, err
		}
	}
}

// FindJobs returns the first jobs that match a query, in the order of their acceptance: at most limit of
// those after a place, which is zero for the first page. With a [job.UnavailableError], the index may lack jobs
// of the ledger; what it has is returned, too.
func (x *Index) FindJobs(ctx context.Context, q *query.Query, after ledger.JobPlace, limit int) (found ledger.FoundJobs, err error) {
	var from *segment.Cursor
	if after != (ledger.JobPlace{}) {
		from = new(cursorOf(after))
	}
	page, err := x.Find(ctx, q, from, limit)
	if err != nil {
		return found, err
	}
	found = ledger.FoundJobs{Documents: page.Documents, More: page.Next != nil, Index: page.Status.Index}
	if page.Next != nil {
		found.Next = ledger.JobPlace{Accepted: page.Next.Value, ID: page.Next.ID}
	}
	found.Lacking = x.lacking(&page.Status)
	return found, x.unavailable(&page.Status)
}

// closed returns why the index has no jobs, nil if it has some.
func (x *Index) closed() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.spool != nil || x.failure == nil {
		return nil
	}
	return &job.UnavailableError{Reason: x.unready(&Status{Failure: x.failure.Error()}), RetryAfter: x.maintainEvery}
}

// unavailable returns why an index in this state does not find all jobs of the ledger, nil if it
// does.
func (x *Index) unavailable(s *Status) error {
	if s.Failure != "" || s.Scanning || s.Ahead > 0 {
		return &job.UnavailableError{Reason: x.unready(s), RetryAfter: time.Second}
	}
	return nil
}

// lacking returns why an index in this state may not have jobs that the ledger has forgotten, or labels of others;
// nil if it has them, or may never have them again, as after retention.
func (x *Index) lacking(s *Status) *job.UnavailableError {
	if s.Scanning || s.Rebuilding {
		return &job.UnavailableError{Reason: x.unready(s), RetryAfter: rebuildRetryAfter}
	}
	return nil
}

// unready names the index with the reason why jobs may be missing from it in this state.
func (x *Index) unready(s *Status) string {
	return fmt.Sprintf("the index of jobs on node %s, which %s", x.cfg.Node, x.defect(s))
}

// defect returns why jobs may be missing from an index in this state, to be read after "the index"; "" if none
// are.
func (x *Index) defect(s *Status) string {
	switch {
	case s.Failure != "":
		return fmt.Sprintf("takes no changes, and is tried again every %s: %s", x.maintainEvery, s.Failure)
	case s.Scanning:
		return fmt.Sprintf("is being rebuilt: %d jobs of the ledger are read, the history is not yet", s.Scanned)
	case s.Ahead > 0:
		return fmt.Sprintf("is %d log entries ahead of the ledger of the node, which has started again and needs a majority of the members: jobs that have not ended may be missing", s.Ahead)
	case s.Shed > 0:
		return fmt.Sprintf("has deleted its oldest files, because the disk had little free space: jobs that ended earlier are found again when %d MiB more are free", max(2*s.Shed>>20, 1))
	case s.Rebuilt < 1:
		return fmt.Sprintf("is being rebuilt: %.0f %% of the history is read; jobs that the ledger has forgotten may be missing, and keys, tags, metadata and params of others", 100*s.Rebuilt)
	}
	return ""
}

// damageError is the damage of a file that a search found.
type damageError struct {
	file *file
	err  error
}

func (e *damageError) Error() string { return e.err.Error() }
func (e *damageError) Unwrap() error { return e.err }

// dropDamaged drops the file that an error is about.
func (x *Index) dropDamaged(err error) bool {
	damage, ok := errors.AsType[*damageError](err)
	if !ok {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.drop(damage.file, damage.err)
	return true
}

// sources returns what a query searches, and the files of it, which are to be released.
func (x *Index) sources(q *query.Query) (sources []segment.Source, files []*file) {
	withLive, oldest := mayNotHaveEnded(q.Where), x.oldestEnd()
	kept := &query.Term{Field: query.FieldEnded, Values: []query.Value{{From: oldest, To: math.MaxInt64}}}
	x.mu.Lock()
	defer x.mu.Unlock()
	files = slices.Clone(x.ended)
	looked, ahead := 0, x.ahead() > 0
	addEnded := func(s segment.Source) {
		if first, _ := s.Span(query.Sort{ByEnd: true}); first < oldest {
			s = agedSource{s, kept}
		}
		sources = append(sources, s)
	}
	addLive := func(s segment.Source) {
		live := &liveSource{Source: s, ledger: x.ledger, looked: &looked, current: make(map[int]*job.Document)}
		if ahead {
			live.hasEnded = x.haveEnded
		}
		sources = append(sources, live)
	}
	for _, f := range files {
		addEnded(fileSource{f})
	}
	ended, live := x.memory.ended.all(), x.memory.live.all()
	if x.frozen != nil {
		ended, live = slices.Concat(ended, x.frozen.ended.visible(x.hidden)), slices.Concat(live, x.frozen.live.visible(x.hidden))
	}
	for _, part := range ended {
		addEnded(part)
	}
	if withLive {
		for _, part := range live {
			addLive(part)
		}
		for _, f := range slices.Concat(x.live, x.before) {
			addLive(fileSource{f})
			files = append(files, f)
		}
	}
	x.use(files)
	return sources, files
}

// fileSource adds to errors which file is damaged.
type fileSource struct{ *file }

func (s fileSource) Find(q *query.Query, from, to *segment.Cursor, limit int) ([]segment.Hit, *segment.Cursor, error) {
	hits, last, err := s.file.Find(q, from, to, limit)
	return hits, last, s.damage(err)
}

func (s fileSource) Document(number int) (*job.Document, error) {
	d, err := s.file.Document(number)
	return d, s.damage(err)
}

func (s fileSource) damage(err error) error {
	if err != nil {
		return &damageError{s.file, err}
	}
	return nil
}

// agedSource is a source of ended jobs. It finds none that ended longer ago than index.age, and is still in
// memory or in a segment with others.
type agedSource struct {
	segment.Source
	kept query.Expr
}

// Find implements [segment.Source].
func (s agedSource) Find(q *query.Query, from, to *segment.Cursor, limit int) ([]segment.Hit, *segment.Cursor, error) {
	where := s.kept
	if q.Where != nil {
		where = query.And{q.Where, s.kept}
	}
	return s.Source.Find(&query.Query{Where: where, Sort: q.Sort}, from, to, limit)
}

// liveSource has documents of jobs that had not ended. It asks the ledger for the rest of each job that
// may match.
type liveSource struct {
	segment.Source
	ledger  Ledger
	looked  *int                  // documents that all of these sources have looked at
	current map[int]*job.Document // documents that match, as the ledger has them, by number
	// hasEnded reports which of the documents are of jobs that have ended. It is set if the ledger is behind the
	// index, and may not know that.
	hasEnded func([]*job.Document) map[ledger.JobPlace]bool
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
			if d := present[i]; d != nil && q.Match(d) {
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
		if *s.looked += len(found); *s.looked >= maxLooked {
			return hits, from, nil
		}
	}
}

// present returns the documents as the ledger has them; nil for a job that has ended since, and
// for an outdated document.
func (s *liveSource) present(docs []*job.Document) []*job.Document {
	present := make([]*job.Document, len(docs))
	var ended map[ledger.JobPlace]bool
	if s.hasEnded != nil {
		ended = s.hasEnded(docs)
	}
	for start := 0; start < len(docs); start += readStep {
		part := docs[start:min(start+readStep, len(docs))]
		s.ledger.View(func(l *ledger.Ledger) {
			for i, d := range part {
				if now, ok := l.Document(d.ID); ok && isOf(d, &now) && !ended[placeOf(d)] {
					now.Key, now.Tags, now.Meta, now.Params = d.Key, d.Tags, d.Meta, d.Params
					present[start+i] = &now
				}
			}
		})
	}
	return present
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

// isOf reports whether d is the document of a job that has not ended and that the ledger has.
func isOf(d, now *job.Document) bool {
	return !now.State.Ended() && now.Created.Equal(d.Created) && now.Function == d.Function && now.LimitKey == d.LimitKey && sameFault(d.Fault, now.Fault)
}

func sameFault(a, b *job.Fault) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Message == b.Message && a.Type == b.Type && a.Code == b.Code
}

// changing reports whether the documents of jobs that have not ended do not have the present value of
// a field.
func changing(f query.Field) bool {
	switch f {
	case query.FieldState, query.FieldPriority, query.FieldAttempts, query.FieldDispatches, query.FieldNode, query.FieldWorker,
		query.FieldStarted, query.FieldEnded, query.FieldSince, query.FieldTook:
		return true
	}
	return false
}

// mayNotHaveEnded reports whether a condition may be that of a job that has not ended.
func mayNotHaveEnded(where query.Expr) bool {
	switch where := where.(type) {
	case query.And:
		return !slices.ContainsFunc(where, func(x query.Expr) bool { return !mayNotHaveEnded(x) })
	case query.Or:
		return slices.ContainsFunc(where, mayNotHaveEnded)
	case *query.Term:
		switch where.Field {
		case query.FieldEnded, query.FieldTook:
			return false
		case query.FieldState:
			return slices.ContainsFunc(where.Values, func(v query.Value) bool {
				state, ok := job.ParseState(v.Text)
				return ok && !state.Ended()
			})
		}
	}
	return true
}
