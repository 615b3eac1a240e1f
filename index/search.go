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
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// rebuildRetryAfter is the time after which a request for a job that the index may lack is to be repeated.
const rebuildRetryAfter = 5 * time.Second

// Page is a page of the jobs that a query finds.
type Page struct {
	segment.Page
	Status Status     // of the index, before the page was read
	Sort   query.Sort // the order of the page, in which the next one is to be requested
	Lacks  bool       // jobs may be missing that ended while the index did not take changes
}

// Find returns the first jobs that match a query in its order: at most limit of those that
// follow the cursor after, unless it is nil. It waits for a moment until the index has what the
// ledger has now.
//
// A job that matches from the entry Status.Index until the page has been read is found, even if it changes
// meanwhile. The same is true of all pages of a list, with one exception: in a list sorted by end, a retry
// moves a job that has ended to another place.
func (x *Index) Find(ctx context.Context, q *query.Query, after *segment.Cursor, limit int) (*Page, error) {
	if err := x.closed(); err != nil {
		return nil, err
	}
	x.refresh(ctx)
	for {
		page := &Page{Status: x.Status(), Sort: q.Sort}
		if q.Sort.ByEnd && after == nil {
			page.Sort.Since = page.Status.Time.UnixNano()
		}
		sorted := &query.Query{Where: q.Where, Sort: page.Sort}
		sources, search, files := x.sources(ctx, sorted, page.Status.Time)
		found, err := segment.Search(ctx, sorted, after, limit, sources...)
		x.release(files)
		if err == nil {
			page.Page, page.Lacks = *found, search.lacks
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
	if page.Lacks {
		return found, &job.UnavailableError{Reason: fmt.Sprintf("the index of jobs on node %s, which is behind the ledger", x.cfg.Node), RetryAfter: time.Second}
	}
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
		return fmt.Sprintf("takes no changes, and is tried again every %s: %s", duration.Format(x.maintainEvery), s.Failure)
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

// sources returns all documents that a query searches, as they are now: a document that is deleted during the
// search is still found. The caller must release files. The index must have the changes of all entries before the
// time since.
func (x *Index) sources(ctx context.Context, q *query.Query, since time.Time) (sources []segment.Source, search *liveSearch, files []*file) {
	withLive, oldest := mayNotHaveEnded(q.Where), x.oldestEnd()
	kept := &query.Term{Field: query.FieldEnded, Values: []query.Value{{From: oldest, To: math.MaxInt64}}}
	x.mu.Lock()
	defer x.mu.Unlock()
	files = slices.Clone(x.ended)
	search = &liveSearch{index: x, ctx: ctx, since: since, ahead: x.ahead() > 0}
	addEnded := func(s segment.Source) {
		if first, _ := s.Span(query.Sort{ByEnd: true}); first < oldest {
			s = agedSource{s, kept}
		}
		sources = append(sources, s)
	}
	addLive := func(s segment.Source) {
		sources = append(sources, &liveSource{Source: s, liveSearch: search, current: make(map[int]*job.Document)})
	}
	for _, f := range files {
		addEnded(fileSource{f, f.Snapshot()})
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
			addLive(fileSource{f, f.Snapshot()})
			files = append(files, f)
		}
	}
	x.use(files)
	return sources, search, files
}

// fileSource has the documents that a file had at one moment. Its errors name a damaged file.
type fileSource struct {
	*file
	then segment.Snapshot
}

func (s fileSource) Find(q *query.Query, from, to *segment.Cursor, limit int) ([]segment.Hit, *segment.Cursor, error) {
	hits, last, err := s.then.Find(q, from, to, limit)
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
