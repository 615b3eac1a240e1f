package server

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Limits of a page of jobs.
const (
	defaultListLimit = 50
	maxListLimit     = 1000
	maxListBytes     = 600 << 10 // of its JSON, so that it fits a NATS message
	maxListScan      = 50_000    // jobs of other functions that one request passes over
)

// list returns a page of the jobs that the request selects.
func (h *Jobs) list(ctx context.Context, q *api.JobListRequest) (*api.JobList, error) {
	query, err := jobQuery(q)
	if err != nil {
		return nil, err
	}
	page, err := h.Viewer.JobList(ctx, query)
	if err != nil {
		return nil, err
	}
	if !q.Brief {
		h.Viewer.AddRecords(ctx, page.Jobs)
	}
	list, err := jobList(page, query.Oldest)
	if err == nil {
		h.Viewer.Ledger.View(func(l *ledger.Ledger) { list.KeptMS = keptMS(l, q.Queues) })
	}
	return list, err
}

// keptMS returns for how many milliseconds the ledger keeps failed jobs of the cluster or, if that is less,
// of one of the queues; 0 if it is a day or more.
func keptMS(l *ledger.Ledger, queues []string) int64 {
	const enough = 24 * time.Hour
	shortest := enough
	shorten := func(r job.Retention) {
		if age := r.Age(job.KeptFinished); age > 0 {
			shortest = min(shortest, age)
		}
	}
	shorten(l.Retention().InForce())
	for _, name := range queues {
		if q, ok := l.Queue(name); ok {
			shorten(q.Config.Retention)
		}
	}
	if shortest == enough {
		return 0
	}
	return shortest.Milliseconds()
}

// jobQuery returns the query of a request.
func jobQuery(q *api.JobListRequest) (*ledger.JobQuery, error) {
	query := &ledger.JobQuery{Queues: q.Queues, Function: q.Function, Limit: cmp.Or(q.Limit, defaultListLimit), MaxScan: maxListScan}
	if query.Limit < 1 || query.Limit > maxListLimit {
		return nil, &job.InvalidError{Reason: fmt.Sprintf("limit is %d; must be 1 to %d", q.Limit, maxListLimit)}
	}
	if slices.Contains(q.Queues, "") {
		return nil, &job.InvalidError{Reason: "queues has an empty name; leave queues out for all queues"}
	}
	for _, name := range q.States {
		state, ok := job.ParseState(name)
		if !ok || state == job.New {
			return nil, &job.InvalidError{Reason: fmt.Sprintf("state %q: must be waiting, delayed, active, completed, failed, cancelled or expired", name)}
		}
		query.States = append(query.States, state)
	}
	switch q.Order {
	case "", api.OrderNewest:
	case api.OrderOldest:
		query.Oldest = true
	default:
		return nil, &job.InvalidError{Reason: fmt.Sprintf("order is %q; must be %s or %s", q.Order, api.OrderNewest, api.OrderOldest)}
	}
	if q.After != "" {
		place, ok := parseCursor(q.After, query.Oldest)
		if !ok {
			return nil, &job.InvalidError{Reason: fmt.Sprintf("after is %q, which is no cursor of such a list; give next of the previous page, which was requested in the same order, or leave it out for the first page", job.CutText(q.After, maxShownName))}
		}
		query.After = &place
	}
	return query, nil
}

// jobList returns a page as the API shows it. If it is too large, it has fewer jobs.
func jobList(page *ledger.JobPage, oldest bool) (*api.JobList, error) {
	list := &api.JobList{Jobs: make([]api.Job, 0, len(page.Jobs)), Totals: api.StateCounts(page.Totals), Lacking: page.Lacking}
	size := 0
	for i := range page.Jobs {
		listed := api.ListedJobOf(&page.Jobs[i].View)
		text, err := json.Marshal(&listed)
		if err != nil {
			return nil, fmt.Errorf("job %s: %w", listed.ID, err)
		}
		if size += len(text); size > maxListBytes && i > 0 {
			last := &page.Jobs[i-1]
			page.Next = &ledger.JobPlace{Accepted: last.Created.UnixNano(), ID: last.ID}
			break
		}
		list.Jobs = append(list.Jobs, listed)
	}
	if page.Next != nil {
		list.Next = cursor(*page.Next, oldest)
	}
	return list, nil
}

// Lists in the two orders have different cursors.
const (
	newestCursor = 'n'
	oldestCursor = 'o'
)

// cursor returns the text for a place in a list. It does not depend on the list's filters.
func cursor(place ledger.JobPlace, oldest bool) string {
	order := byte(newestCursor)
	if oldest {
		order = oldestCursor
	}
	b := binary.BigEndian.AppendUint64([]byte{order}, uint64(place.Accepted))
	return base64.RawURLEncoding.EncodeToString(append(b, place.ID[:]...))
}

// parseCursor returns the place of a text that cursor returned for a list in this order.
func parseCursor(text string, oldest bool) (place ledger.JobPlace, ok bool) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) != 1+8+len(place.ID) {
		return place, false
	}
	place.Accepted = int64(binary.BigEndian.Uint64(b[1:9]))
	copy(place.ID[:], b[9:])
	return place, cursor(place, oldest) == text && place.Accepted >= -1 && place.Accepted < 1<<62
}
