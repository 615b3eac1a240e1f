package operations

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/index/query"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/server/deadletters"
)

// Bounds of a preview.
const (
	maxSample      = 20
	maxShownParams = 16 << 10        // bytes
	countPage      = 1000            // jobs that are read at once
	maxCounted     = 100_000         // jobs
	countTimeout   = 2 * time.Second // after it no page is begun
	letterTimeout  = time.Second     // after it no dead letter is looked for
)

// counted is a preview, and the jobs that would become new ones.
type counted struct {
	api.OperationPreview
	query   *query.Query
	create  []newJob
	lacking *job.UnavailableError // why jobs may be missing; nil: none are
}

// newJob is a job that is created from a dead letter.
type newJob struct {
	job    job.ID
	letter uint64 // its number
	sample int    // its index in the sample, negative: it is not in it
}

// count counts the jobs that an operation would come to, and takes the first ones as a sample.
func (s *Server) count(ctx context.Context, settings *ledger.OperationSettings, sample int) (*counted, error) {
	q, err := parse(settings.Query, query.Options{}) // all its times are absolute
	if err != nil {
		return nil, err
	}
	preview := &counted{query: q, OperationPreview: api.OperationPreview{
		Action: settings.Action.String(), Query: settings.Query, States: map[string]int{}, Skipped: map[string]int{}, Sample: []api.OperationSample{}, Index: math.MaxUint64,
	}}
	deadline := time.Now().Add(countTimeout)
	for after, more := (ledger.JobPlace{}), true; more; {
		if preview.Matched >= maxCounted || time.Now().After(deadline) {
			preview.AtLeast = true
			break
		}
		found, err := s.Find.FindJobs(ctx, q, after, countPage)
		if err != nil {
			return nil, err
		}
		if found.Lacking != nil && q.UsesLabels() {
			return nil, found.Lacking // too many jobs may match, or too few
		}
		preview.Index, more = min(preview.Index, found.Index), found.More
		if found.Lacking != nil && usesForgotten(settings.Action) {
			preview.AtLeast, preview.lacking = true, found.Lacking
		}
		s.View(func(l *ledger.Ledger) {
			for _, d := range found.Documents {
				if d.Created.After(settings.Until) {
					more = false
					return
				}
				after = placeOf(d)
				if now, kept, ok := present(l, d); ok && q.Match(now) {
					preview.add(settings, now, kept, sample)
				}
			}
		})
		if after.Compare(found.Next) < 0 {
			after = found.Next
		}
	}
	return preview, nil
}

// add counts a job.
func (c *counted) add(settings *ledger.OperationSettings, d *job.Document, kept bool, sample int) {
	todo := planFor(settings, d, kept)
	c.Matched++
	c.States[d.State.String()]++
	if todo.way == notAtAll {
		c.Skipped[todo.why.String()]++
	} else {
		c.Applicable++
	}
	at := -1
	if len(c.Sample) < sample {
		at = len(c.Sample)
		item := api.OperationSample{
			ID: d.ID, Queue: d.Queue, Function: d.Function, State: d.State.String(), Created: d.Created, Error: d.Fault, DeadLetter: d.DeadLetter,
		}
		if todo.way == notAtAll {
			item.Skipped = todo.why.String()
		}
		c.Sample = append(c.Sample, item)
	}
	if todo.way == asNewJob && sample > 0 {
		c.create = append(c.create, newJob{d.ID, d.DeadLetter, at})
	}
}

// checkLetters counts jobs as skipped whose dead letters are gone, as far as there is time to look for
// them.
func (s *Server) checkLetters(ctx context.Context, preview *counted) {
	var mu sync.Mutex
	var group crash.Group
	group.SetLimit(maxParallelJobs)
	deadline := time.Now().Add(letterTimeout)
	for i := range preview.create {
		j := &preview.create[i]
		group.Go(func() error {
			has, err := true, context.DeadlineExceeded
			if time.Now().Before(deadline) {
				has, err = s.HasLetter(ctx, j.job, j.letter)
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err != nil:
				preview.Unchecked++
			case !has:
				preview.Applicable--
				preview.Skipped[ledger.SkipLetterGone.String()]++
				if j.sample >= 0 {
					preview.Sample[j.sample].Skipped = ledger.SkipLetterGone.String()
				}
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return no error
}

// previewJobs adds to the sample which params the new jobs would have, and why one would be
// refused.
func (s *Server) previewJobs(ctx context.Context, settings *ledger.OperationSettings, preview *counted) {
	var group crash.Group
	group.SetLimit(maxParallelJobs)
	for _, j := range preview.create {
		if j.sample < 0 || preview.Sample[j.sample].Skipped != "" {
			continue
		}
		item := &preview.Sample[j.sample]
		group.Go(func() error {
			params, err := s.Preview(ctx, &deadletters.NewJob{
				Job: item.ID, DeadLetter: item.DeadLetter, To: settings.To, KeepAttempts: settings.KeepAttempts, Params: settings.Params,
			})
			if len(settings.Params) > 0 && len(params) <= maxShownParams {
				item.Params = params
			}
			if err != nil {
				item.Refused = err.Error()
			}
			return nil
		})
	}
	_ = group.Wait() // the functions return no error
}
