package fakeledger

import (
	"context"

	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
)

// Finder finds the jobs that a ledger has, by what the ledger has of them: neither by keys,
// tags, metadata and params, nor by all of an error's message.
type Finder struct {
	View func(func(*ledger.Ledger)) // reads the ledger
}

// FindJobs returns the first jobs that match the query, as the index of a node does. It looks at every job.
func (f Finder) FindJobs(ctx context.Context, q *query.Query, after ledger.JobPlace, limit int) (ledger.FoundJobs, error) {
	var found ledger.FoundJobs
	for found.More = true; found.More && len(found.Documents) < limit && ctx.Err() == nil; {
		list := ledger.NewJobList(&ledger.JobQuery{Oldest: true, After: &after, Limit: limit - len(found.Documents)})
		for done := false; !done; {
			f.View(func(l *ledger.Ledger) {
				found.Index = l.Index()
				done = list.Step(l)
			})
		}
		page := list.Page()
		for i := range page.Jobs {
			d := documentOf(&page.Jobs[i].View)
			after = ledger.JobPlace{Accepted: d.Created.UnixNano(), ID: d.ID}
			if q.Match(d) {
				found.Documents = append(found.Documents, d)
			}
		}
		found.More = page.Next != nil
		if page.Next != nil {
			after = *page.Next
		}
	}
	found.Next = after
	return found, ctx.Err()
}

// documentOf returns what a ledger has of a job.
func documentOf(v *job.View) *job.Document {
	return &job.Document{
		ID: v.ID, Key: v.Key, Queue: v.Queue, Function: v.Function, State: v.State, LimitKey: v.LimitKey, Priority: v.Priority, Attempts: v.Attempts, Dispatches: v.Dispatches,
		Created: v.Created, Started: v.Started, Ended: v.Ended, Node: v.Node, Worker: v.Worker, Fault: v.Fault, Cancellation: v.Cancellation, DeadLetter: v.DeadLetter,
	}
}
