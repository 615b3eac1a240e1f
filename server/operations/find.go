package operations

import (
	"context"
	"errors"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Finder finds jobs, as the index of this node.
type Finder interface {
	// FindJobs returns the first jobs that match the query, oldest first, at most limit of those
	// after a place. A [job.UnavailableError] means that jobs cannot be found at present.
	FindJobs(ctx context.Context, q *query.Query, after ledger.JobPlace, limit int) (ledger.FoundJobs, error)
}

// placeOf returns the place of a job.
func placeOf(d *job.Document) ledger.JobPlace {
	return ledger.JobPlace{Accepted: d.Created.UnixNano(), ID: d.ID}
}

// parse returns the query of an operation, which goes through the jobs in the order of their
// acceptance, whatever order the text has.
func parse(text string, options query.Options) (*query.Query, error) {
	q, err := query.Parse(text, options)
	if syntax, ok := errors.AsType[*query.SyntaxError](err); ok {
		return nil, api.InvalidQuery(syntax.Error(), api.QueryProblem(*syntax))
	}
	q.Sort = query.Sort{Oldest: true}
	return q, nil
}

// canonical returns the text of a query without its order.
func canonical(q *query.Query) string {
	return (&query.Query{Where: q.Where}).String()
}
