package diagnose

import (
	"context"
	"fmt"
	"sync"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// maxHeads is how many heads an explanation has at most. A head is the first of
// those jobs of a queue that the same executors may run.
const maxHeads = 5

// ExplainQueue returns why a queue's jobs run or do not run.
func (g *Diagnoser) ExplainQueue(ctx context.Context, q *api.QueueRequest) (*api.QueueExplanation, error) {
	if q.Name == "" {
		return nil, &job.InvalidError{Reason: `name the queue: {"name": "<queue>"}`}
	}
	findCtx, cancel := g.findContext(ctx)
	view, ok, err := g.cfg.FindQueue(findCtx, q.Name)
	cancel()
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, fmt.Errorf("queue %q: %w", q.Name, job.ErrQueueNotFound)
	}
	return g.explainQueue(ctx, view), nil
}

// explainQueue explains a queue that exists. The reasons that concern the whole queue, and
// what blocks its first head, are the queue's; other reasons are stated with their head.
func (g *Diagnoser) explainQueue(ctx context.Context, view ledger.QueueView) *api.QueueExplanation {
	e := &api.QueueExplanation{Queue: api.QueueOf(&view), Reasons: []api.Reason{}, Heads: []api.WaitlistHead{}, Observed: g.provenance()}
	e.Workers, e.Runner = g.cfg.Route(view.Name, "any")
	var heads []*diagnosis
	own := g.newDiagnosis()
	own.job.View.Queue, own.job.QueueView = view.Name, view
	g.cfg.View(func(l *ledger.Ledger) { heads = g.readQueue(l, e, own) })
	var queries sync.WaitGroup
	queries.Go(func() {
		own.placement, own.noAnswer = g.explainPlacement(ctx, scheduler.PlacementQuery{Queue: view.Name})
	})
	queries.Go(func() { e.Nodes = g.queryExecutors(ctx, executorsRequest{e.Workers, e.Runner}) })
	for _, head := range heads {
		queries.Go(func() { g.queryNodes(ctx, head) })
	}
	queries.Wait()
	reasons := own.blockers()
	stated := map[api.ReasonCode]bool{} // for the whole queue
	for _, r := range reasons {
		stated[r.Code] = true
	}
	for i, head := range heads {
		for _, r := range head.reasons() {
			switch {
			case stated[r.Code]:
			case r.blocks && i == 0:
				reasons = append(reasons, r)
			default:
				e.Heads[i].Reasons = append(e.Heads[i].Reasons, r.Reason)
			}
		}
	}
	summarize(e, &view, reasons)
	return e
}

// readQueue reads the queue of own, whose diagnosis is not about a job but about the
// queue, from l into e and own. It adds the heads to e and returns a diagnosis for each.
func (g *Diagnoser) readQueue(l *ledger.Ledger, e *api.QueueExplanation, own *diagnosis) (heads []*diagnosis) {
	name := own.job.View.Queue
	own.outboxFull = outboxFull(l)
	own.holders = l.ActiveInQueue(name, api.MaxActiveJobs)
	e.Active = own.holderList()
	active := own.job.QueueView.Counts[job.Active]
	own.job.PausedSince, _ = l.PausedSince(name)
	e.MoreActive = max(0, active-len(e.Active))
	limit := own.job.QueueView.Config.Limit
	own.job.LimitReached = limit > 0 && active >= int(limit)
	if w, ok := l.OldestWaitingJob(name); ok {
		e.Oldest = &api.OldestJob{ID: w.ID, Accepted: w.Accepted.UTC(), AgeMS: max(0, own.now.Sub(w.Accepted).Milliseconds())}
	}
	if id, at, notBefore, ok := l.NextDelayed(name); ok {
		e.NextDue = &api.NextDueJob{ID: &id, At: at}
	} else if !notBefore.IsZero() {
		e.NextDue = &api.NextDueJob{At: notBefore}
	}
	for _, first := range l.WaitlistHeads(name, maxHeads) {
		head := g.newDiagnosis()
		if !head.readLedger(l, first.ID) {
			continue
		}
		heads = append(heads, head)
		e.Heads = append(e.Heads, api.WaitlistHead{ID: first.ID, Function: first.Function, Count: first.Count, Reasons: []api.Reason{}})
	}
	return heads
}

// summarize sets the reasons of e and its verdict, the explanation in one sentence. Without
// reasons it adds one: that the queue is idle, or that its jobs start in their order.
func summarize(e *api.QueueExplanation, view *ledger.QueueView, reasons []reason) {
	waiting, active := view.Counts[job.Waiting], view.Counts[job.Active]
	text := ""
	for _, r := range reasons {
		e.Reasons = append(e.Reasons, r.Reason)
		if r.blocks {
			if text != "" {
				text += "; and "
			}
			text += r.Text
		}
	}
	switch {
	case waiting == 0 && text == "":
		idle := "nothing waits in queue " + view.Name
		if active > 0 {
			idle += fmt.Sprintf(", and %d of its jobs %s", active, runVerb(active))
		}
		idle += delayedSuffix(e, view.Counts[job.Delayed])
		e.Reasons = append(e.Reasons, api.Reason{Code: api.ReasonIdle, Text: idle})
		text = idle
	case waiting == 0:
		text = "nothing waits in queue " + view.Name + delayedSuffix(e, view.Counts[job.Delayed]) + "; but " + text
	case text == "":
		text = fmt.Sprintf("the jobs of queue %s start in their order: %d wait, %d run", view.Name, waiting, active)
		e.Reasons = append(e.Reasons, api.Reason{Code: api.ReasonFlowing, Text: text})
	default:
		text = fmt.Sprintf("queue %s has %s waiting: %s", view.Name, plural(waiting, "job"), text)
	}
	e.Verdict = withCaveat(&e.Observed, sentence(text), e.Reasons)
}

// delayedSuffix returns the end of a sentence about the number of delayed jobs, or "" for
// 0.
func delayedSuffix(e *api.QueueExplanation, delayed int) string {
	if delayed == 0 {
		return ""
	}
	verb := "are"
	if delayed == 1 {
		verb = "is"
	}
	text := fmt.Sprintf("; %s %s due later", plural(delayed, "job"), verb)
	if d := e.NextDue; d != nil && d.ID != nil {
		text += ", the first at " + ledger.FormatTime(d.At)
	}
	return text
}

// runVerb returns the verb for a number of jobs.
func runVerb(jobs int) string {
	if jobs == 1 {
		return "runs"
	}
	return "run"
}
