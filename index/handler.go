package index

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/index/segment"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Limits of a page.
const (
	defaultLimit = 50
	maxLimit     = 1000
	maxPageBytes = 600 << 10 // of its JSON, so that it fits a NATS message
)

// HandleFind answers a request for the jobs that a query finds.
func (x *Index) HandleFind(ctx context.Context, r *api.JobFindRequest) (*api.FoundJobs, error) {
	limit := cmp.Or(r.Limit, defaultLimit)
	if limit < 1 || limit > maxLimit {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d", r.Limit, maxLimit)}
	}
	q, err := x.parse(ctx, r)
	if err != nil {
		return nil, err
	}
	var after *segment.Cursor
	if r.Cursor != "" {
		c, sort, ok := parseCursor(r.Cursor, q.Sort)
		if !ok {
			return nil, &job.InvalidError{Reason: fmt.Sprintf("cursor is %q, which is no cursor of such a query; give next of the previous page, which was requested in the same order, or leave it out for the first page", job.CutText(r.Cursor, 64))}
		}
		after, q.Sort = &c, sort
	}
	page, err := x.Find(ctx, q, after, limit)
	if err != nil {
		return nil, err
	}
	q.Sort = page.Sort
	found := &api.FoundJobs{Jobs: make([]api.Job, 0, len(page.Documents)), Query: q.String(), Index: x.report(&page.Status)}
	size := 0
	for i, d := range page.Documents {
		j := jobOf(d)
		text, err := json.Marshal(&j)
		if err != nil {
			return nil, fmt.Errorf("job %s: %w", d.ID, err)
		}
		if size += len(text); size > maxPageBytes && i > 0 {
			last := page.Documents[i-1]
			page.Next = &segment.Cursor{Value: q.Sort.Value(last), ID: last.ID}
			break
		}
		found.Jobs = append(found.Jobs, j)
	}
	if after == nil {
		found.Advice = x.advice(ctx, q)
	}
	if page.Next != nil {
		found.Next = cursorText(*page.Next, q.Sort)
	}
	return found, nil
}

// parse returns the query of a request. The error has an [api.QueryProblem] if the query is wrong.
func (x *Index) parse(ctx context.Context, r *api.JobFindRequest) (*query.Query, error) {
	q, err := query.Parse(r.Query, x.QueryOptions(ctx))
	if err == nil && r.Sort != "" {
		var sorted *query.Query
		if sorted, err = query.Parse("sort:"+r.Sort, query.Options{}); err == nil {
			q.Sort = sorted.Sort
		} else {
			return nil, &job.InvalidError{Reason: fmt.Sprintf("sort is %q; must be created, ended, -created or -ended", job.CutText(r.Sort, 64))}
		}
	}
	if syntax, ok := errors.AsType[*query.SyntaxError](err); ok {
		return nil, api.InvalidQuery(syntax.Error(), api.QueryProblem(*syntax))
	}
	return q, err
}

// QueryOptions returns what queries of users are read with now.
func (x *Index) QueryOptions(ctx context.Context) query.Options {
	o := query.Options{Now: time.Now(), HasLabel: func(t *query.Term) bool { return x.has(ctx, t) }, HasQueue: x.hasQueue}
	x.ledger.View(func(l *ledger.Ledger) { o.Params = l.ParamPaths().Indexed() })
	return o
}

// has reports whether a job has any value of a label, or may have one.
func (x *Index) has(ctx context.Context, t *query.Term) bool {
	found, err := x.FindJobs(ctx, t.AnyValue(), ledger.JobPlace{}, 1)
	return err != nil || found.Lacking != nil || len(found.Documents) > 0
}

// labelSample is how many of the newest jobs labels are proposed from.
const labelSample = 200

// advice returns what may be wrong with a query that has labels which no job has.
func (x *Index) advice(ctx context.Context, q *query.Query) []string {
	var indexed []string
	x.ledger.View(func(l *ledger.Ledger) { indexed = l.ParamPaths().Indexed() })
	known := func(t *query.Term) bool { return slices.Contains(indexed, "params."+t.Name) || x.has(ctx, t) }
	return q.UnknownLabels(known, x.hasQueue, func() []string {
		names := make(map[string]bool)
		for _, path := range indexed {
			names[strings.TrimPrefix(path, "params.")] = true
		}
		newest, _ := x.FindJobs(ctx, &query.Query{}, ledger.JobPlace{}, labelSample) // fewer are proposed
		for _, d := range newest.Documents {
			for _, l := range slices.Concat(d.Meta, d.Params) {
				names[l.Name] = true
			}
		}
		return slices.Sorted(maps.Keys(names))
	})
}

// hasQueue reports whether the ledger has a queue.
func (x *Index) hasQueue(name string) (ok bool) {
	x.ledger.View(func(l *ledger.Ledger) { _, ok = l.Queue(name) })
	return ok
}

// jobOf returns a document as the API shows it.
func jobOf(d *job.Document) api.Job {
	v := d.View()
	return api.JobOf(&v)
}

// Report returns the present state.
func (x *Index) Report() api.IndexStatus {
	s := x.Status()
	return x.report(&s)
}

// Warnings returns why jobs may be missing from the index.
func (x *Index) Warnings() []string {
	s := x.Status()
	if defect := x.defect(&s); defect != "" {
		return []string{"the index of jobs " + defect}
	}
	return nil
}

func (x *Index) report(s *Status) api.IndexStatus {
	status := api.IndexStatus{
		AsOf: s.Index, AsOfTime: s.Time, Ended: s.Documents, Bytes: s.Bytes, Scanning: s.Scanning, Scanned: s.Scanned, Unusable: s.Failure,
		Rebuilt: s.Rebuilt, Files: s.Files, Failures: s.Failures, Ahead: s.Ahead,
	}
	x.ledger.View(func(l *ledger.Ledger) { status.Lag = l.Index() - min(s.Index, l.Index()) })
	return status
}

// cursorText returns the text of a cursor in an order. It does not depend on the query's condition.
func cursorText(c segment.Cursor, sort query.Sort) string {
	b := binary.BigEndian.AppendUint64([]byte(sort.String()+"\x00"), uint64(c.Value))
	b = append(b, c.ID[:]...)
	if sort.Since != 0 {
		b = binary.BigEndian.AppendUint64(b, uint64(sort.Since))
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseCursor returns the cursor of a text that cursorText returned for this order, and the order with the
// [query.Sort.Since] of the cursor.
func parseCursor(text string, order query.Sort) (c segment.Cursor, sort query.Sort, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	start := len(order.String()) + 1
	size := start + 8 + len(c.ID)
	if err != nil || len(b) != size && (len(b) != size+8 || !order.ByEnd) {
		return c, order, false
	}
	c.Value = int64(binary.BigEndian.Uint64(b[start:]))
	copy(c.ID[:], b[start+8:])
	if len(b) > size {
		order.Since = int64(binary.BigEndian.Uint64(b[size:]))
	}
	return c, order, cursorText(c, order) == text
}
