package jobview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/internal/duration"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Index finds jobs that the ledger has forgotten, as the index of this node.
type Index interface {
	// FindJobs returns the first jobs that match the query, in the order of their acceptance: at most
	// limit of those after a place, which is zero for the first page. A [*job.UnavailableError] means
	// that the index may lack jobs; what it has is returned, too.
	FindJobs(ctx context.Context, q *query.Query, after ledger.JobPlace, limit int) (ledger.FoundJobs, error)
}

// endedStates is the condition of jobs that the ledger may have forgotten.
func endedStates(states []job.State) *query.Term {
	t := &query.Term{Field: query.FieldState}
	for s := job.Waiting; int(s) < job.States; s++ {
		if s.Ended() && (len(states) == 0 || slices.Contains(states, s)) {
			t.Values = append(t.Values, query.Value{Text: s.String()})
		}
	}
	return t
}

func term(field query.Field, texts ...string) *query.Term {
	t := &query.Term{Field: field}
	for _, text := range texts {
		t.Values = append(t.Values, query.Value{Text: text})
	}
	return t
}

// IncompleteError is returned for a job that the ledger does not have while the index may lack jobs that
// the ledger has forgotten. It wraps a [*job.UnavailableError].
type IncompleteError struct {
	Job   string // as the request names it
	cause *job.UnavailableError
}

func (e *IncompleteError) Error() string {
	return fmt.Sprintf("job %s is not in the ledger, and may be in %s; try again in %s", e.Job, e.cause.Reason, duration.Format(e.cause.RetryAfter))
}

func (e *IncompleteError) Unwrap() error { return e.cause }

// RetryAfter returns the time after which the index may have the job.
func (e *IncompleteError) RetryAfter() time.Duration { return e.cause.RetryAfter }

// findInIndex returns the first jobs that the index finds, and why it may lack jobs that the ledger has
// forgotten; nil if it does not.
func (v *Viewer) findInIndex(ctx context.Context, q *query.Query, after ledger.JobPlace, limit int) (found ledger.FoundJobs, lacking *job.UnavailableError, err error) {
	found, err = v.Index.FindJobs(ctx, q, after, limit)
	if unavailable, ok := errors.AsType[*job.UnavailableError](err); ok {
		return found, cmp.Or(found.Lacking, unavailable), nil
	}
	return found, found.Lacking, err
}

// findForgotten returns the first jobs that the index finds. With an [*IncompleteError] for the job name,
// it may lack jobs. It finds no jobs that the caller may not read.
func (v *Viewer) findForgotten(ctx context.Context, name string, where query.And, limit int) ([]*job.Document, error) {
	if within := cluster.QueuesOf(ctx); within != nil {
		where = append(where, term(query.FieldQueue, within...))
	}
	found, lacking, err := v.findInIndex(ctx, &query.Query{Where: where}, ledger.JobPlace{}, limit)
	if lacking != nil {
		err = &IncompleteError{name, lacking}
	}
	return found.Documents, err
}

// forgotten returns the newest job with an id that has ended and that the ledger has forgotten; nil
// if there is none. An [*IncompleteError] means that this is not certain.
func (v *Viewer) forgotten(ctx context.Context, id job.ID) (*job.Document, error) {
	removed := false
	v.Ledger.View(func(l *ledger.Ledger) { removed = l.Removed(id) })
	if v.Index == nil || removed && cluster.QueuesOf(ctx) == nil { // else the error must not depend on removed
		return nil, nil
	}
	found, err := v.findForgotten(ctx, id.String(), query.And{term(query.FieldID, id.String()), endedStates(nil)}, 1)
	if len(found) > 0 && !removed {
		return found[0], nil
	}
	return nil, err
}

// forgottenKey returns the id of the job with a key, of the given queue or else of the only queue that has
// such a job, which the ledger has forgotten. An [*IncompleteError] means that there may be one.
func (v *Viewer) forgottenKey(ctx context.Context, key, queue string) (found job.ID, err error) {
	if v.Index == nil {
		return found, job.ErrJobNotFound
	}
	where := query.And{term(query.FieldKey, key), endedStates(nil)}
	if queue != "" {
		where = append(where, term(query.FieldQueue, queue))
	}
	const most = 100 // others have it as their limit key
	documents, uncertain := v.findForgotten(ctx, strconv.Quote(key), where, most)
	inQueue := ""
	for _, d := range documents {
		switch {
		case d.Key != key || d.ID == found:
		case inQueue != "" && inQueue != d.Queue:
			return job.ID{}, ambiguousError(inQueue, d.Queue, key)
		case inQueue == "":
			found, inQueue = d.ID, d.Queue
		}
	}
	if inQueue == "" {
		return found, cmp.Or(uncertain, job.ErrJobNotFound)
	}
	return found, nil
}

func ambiguousError(queue, other, key string) error {
	return &job.InvalidError{Reason: fmt.Sprintf("queues %s and %s have a job with the key %q; name the queue", queue, other, key)}
}

// Ended returns a job that has ended, also one that the ledger has forgotten, without its body and its
// result, and the number of its result. The error wraps [job.ErrJobNotFound] if there is none.
func (v *Viewer) Ended(ctx context.Context, id job.ID) (view job.View, result uint64, err error) {
	view, ref, err := v.ledgerView(ctx, id)
	if err == nil && !view.State.Ended() {
		err = fmt.Errorf("job %s is %s: %w", id, view.State, job.ErrJobNotFound)
	}
	return view, ref.number, err
}

// addForgotten adds jobs that the ledger has forgotten to a page of those that it has. Both are in the order
// of acceptance, in which every job keeps its place.
func (v *Viewer) addForgotten(ctx context.Context, q *ledger.JobQuery, page *ledger.JobPage) error {
	states := endedStates(q.States)
	if v.Index == nil || len(states.Values) == 0 {
		return nil
	}
	where := query.And{states}
	if len(q.Queues) > 0 {
		where = append(where, term(query.FieldQueue, q.Queues...))
	}
	if q.Function != "" {
		where = append(where, term(query.FieldFunction, q.Function))
	}
	var after ledger.JobPlace
	if q.After != nil {
		after = *q.After
	}
	found, lacking, err := v.findInIndex(ctx, &query.Query{Where: where, Sort: query.Sort{Oldest: q.Oldest}}, after, q.Limit)
	if err != nil {
		return err
	}
	if lacking != nil {
		page.Lacking = lacking.Reason
	}
	merged := page.Jobs
	v.Ledger.View(func(l *ledger.Ledger) {
		for _, d := range found.Documents {
			if _, _, kept := l.Find(d.ID); !kept && !l.Removed(d.ID) {
				view := d.View()
				view.Forgotten = true
				merged = append(merged, ledger.ListedJob{View: view, Purged: l.RecordPurged(view.Position)})
			}
		}
	})
	place := func(j *ledger.ListedJob) ledger.JobPlace {
		return ledger.JobPlace{Accepted: j.Created.UnixNano(), ID: j.ID}
	}
	compare := func(a, b ledger.JobPlace) int {
		if q.Oldest {
			return a.Compare(b)
		}
		return b.Compare(a)
	}
	slices.SortStableFunc(merged, func(a, b ledger.ListedJob) int { return compare(place(&a), place(&b)) })
	merged = slices.CompactFunc(merged, func(a, b ledger.ListedJob) bool { return place(&a) == place(&b) }) // forgotten meanwhile
	// Beyond the place where either page ends, that one may have more jobs.
	if found.More && (page.Next == nil || compare(found.Next, *page.Next) < 0) {
		page.Next = &found.Next
	}
	if page.Next != nil {
		merged = slices.DeleteFunc(merged, func(j ledger.ListedJob) bool { return compare(place(&j), *page.Next) > 0 })
	}
	if len(merged) > q.Limit {
		merged = merged[:q.Limit]
		page.Next = new(place(&merged[q.Limit-1]))
	}
	page.Jobs = merged
	return nil
}

// foundFor returns until when jobs that have ended are found, as a part of a sentence.
func foundFor(l *ledger.Ledger) string {
	age := l.Retention().InForce().Age(job.KeptIndex)
	if age == 0 {
		age = job.DefaultRetention.Age(job.KeptIndex)
	}
	return fmt.Sprintf("%s after its end, unless there are too many (retention index.age, index.count, index.bytes)", duration.Format(age))
}
