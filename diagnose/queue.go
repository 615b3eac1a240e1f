package diagnose

import (
	"context"
	"fmt"
	"strings"

	"github.com/yardmaster-dev/yardmaster/api"
	"github.com/yardmaster-dev/yardmaster/internal/crash"
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
	view, err := g.cfg.FindQueue(findCtx, q.Name)
	cancel()
	if err != nil {
		return nil, err
	}
	return g.explainQueue(ctx, view), nil
}

// explainQueue explains a queue that exists. It reads the local ledger, asks the authority
// and the nodes, and waits for their answers. The reasons that concern the whole queue, and
// what blocks its first head, are the queue's; other reasons are stated with their head.
func (g *Diagnoser) explainQueue(ctx context.Context, view ledger.QueueView) *api.QueueExplanation {
	e := &api.QueueExplanation{Queue: api.QueueOf(&view), Reasons: []api.Reason{}, Heads: []api.WaitlistHead{}, Observed: g.provenance()}
	e.Workers, e.Runner = g.cfg.Route(view.Name, "any")
	var heads []*diagnosis
	queueDiagnosis := g.newDiagnosis()
	queueDiagnosis.job.View.Queue, queueDiagnosis.job.QueueView = view.Name, view
	g.cfg.View(func(l *ledger.Ledger) { heads = g.readQueue(l, e, queueDiagnosis) })

	var queries crash.Group
	queries.Run(func() {
		queueDiagnosis.placement, queueDiagnosis.noAnswer = g.explainPlacement(ctx, scheduler.PlacementQuery{Queue: view.Name})
	})
	queries.Run(func() { e.Nodes = g.queryExecutors(ctx, executorsRequest{e.Workers, e.Runner}) })
	for _, head := range heads {
		queries.Run(func() { g.queryNodes(ctx, head) })
	}
	_ = queries.Wait() // the functions return no errors

	reasons := queueDiagnosis.blockers()
	if r := keysReason(view.Name, queueDiagnosis.keyCounts); r != nil {
		reasons = append(reasons, *r)
	}
	statedForQueue := map[api.ReasonCode]bool{}
	for _, r := range reasons {
		statedForQueue[r.Code] = true
	}
	for i, head := range heads {
		for _, r := range head.reasons() {
			switch {
			case statedForQueue[r.Code]:
				continue
			case r.blocks && i == 0 && (!isOfKey(r.Code) || queueDiagnosis.keyCounts.Keys == 0):
				reasons = append(reasons, r)
			default:
				e.Heads[i].Reasons = append(e.Heads[i].Reasons, r.Reason)
			}
		}
	}
	summarize(e, &view, reasons)
	return e
}

// readQueue reads from l what may keep the jobs of a queue from running, into
// queueDiagnosis, and what the explanation shows of the queue, into e. Of the diagnosis it
// uses only what concerns a queue as a whole. Jobs of the queue that the same executors may
// run form a waitlist, whose first job is its head: readQueue adds up to maxHeads heads to
// e, without their reasons, and returns a diagnosis for each.
func (g *Diagnoser) readQueue(l *ledger.Ledger, e *api.QueueExplanation, queueDiagnosis *diagnosis) (heads []*diagnosis) {
	queue := queueDiagnosis.job.QueueView
	active, limit := queue.Counts[job.Active], int(queue.Config.Limit)
	queueDiagnosis.job.LimitReached = limit > 0 && active >= limit
	queueDiagnosis.job.PausedSince, _ = l.PausedSince(queue.Name) // zero if it is not paused
	queueDiagnosis.holders = l.ActiveInQueue(queue.Name, api.MaxActiveJobs)
	queueDiagnosis.outboxFull = outboxFull(l)
	queueDiagnosis.limits = l.QueueLimitBlocks(queue.Name, queueDiagnosis.now)
	queueDiagnosis.keyCounts = l.KeyCounts(queue.Name)

	e.Active = queueDiagnosis.holderList()
	e.MoreActive = max(0, active-len(e.Active))
	if oldest, ok := l.OldestWaitingJob(queue.Name); ok {
		e.Oldest = api.NewOldestJob(oldest.ID, oldest.Accepted, queueDiagnosis.now)
	}
	if id, at, notBefore, ok := l.NextDelayed(queue.Name); ok {
		e.NextDue = &api.NextDueJob{ID: &id, At: at}
	} else if !notBefore.IsZero() { // a delayed job exists, but its search was given up
		e.NextDue = &api.NextDueJob{At: notBefore}
	}

	for _, head := range l.WaitlistHeads(queue.Name, maxHeads) {
		headDiagnosis := g.newDiagnosis()
		headDiagnosis.readLedger(l, head.ID)
		heads = append(heads, headDiagnosis)
		e.Heads = append(e.Heads, api.WaitlistHead{ID: head.ID, Function: head.Function, Key: head.LimitKey, Count: head.Count, Reasons: []api.Reason{}})
	}
	return heads
}

// summarize sets the reasons of e and its verdict, the explanation in one sentence. Without
// reasons it adds one: that the queue is idle, or that its jobs start in their order.
func summarize(e *api.QueueExplanation, view *ledger.QueueView, reasons []reason) {
	waiting, active := view.Counts[job.Waiting], view.Counts[job.Active]
	e.Reasons = append(e.Reasons, apiReasons(reasons)...)
	text := strings.Join(blockingTexts(reasons), "; and ")
	switch {
	case waiting == 0 && text == "":
		idle := "nothing waits in queue " + view.Name
		if active == 1 {
			idle += ", and 1 of its jobs runs"
		} else if active > 1 {
			idle += fmt.Sprintf(", and %d of its jobs run", active)
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
