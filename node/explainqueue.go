package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/yardmaster-dev/yardmaster/cluster"
	"github.com/yardmaster-dev/yardmaster/job"
	"github.com/yardmaster-dev/yardmaster/ledger"
	"github.com/yardmaster-dev/yardmaster/scheduler"
)

// queueExplanation is why a queue's jobs run or do not run.
type queueExplanation struct {
	Queue      queueJSON       `json:"queue"`
	Verdict    string          `json:"verdict"`
	Reasons    []reason        `json:"reasons"` // of the queue, and of its first waiting job
	Oldest     *oldestJob      `json:"oldest,omitempty"`
	NextDue    *nextDueJob     `json:"next_due,omitempty"`
	Heads      []headJSON      `json:"heads"` // the first waiting job for each kind of executor
	Active     []holder        `json:"active"`
	MoreActive int             `json:"more_active"`
	Workers    string          `json:"workers"` // the queue whose Overhop workers may run its jobs; "": none may
	Runner     string          `json:"runner"`  // the runner for its jobs, or for those whose function names none; "": none
	Nodes      []nodeExecutors `json:"nodes"`
	Observed   provenance      `json:"observed"`
}

// oldestJob is the waiting job that was accepted first.
type oldestJob struct {
	ID       job.ID    `json:"id"`
	Accepted time.Time `json:"accepted_at"`
	AgeMS    int64     `json:"age_ms"`
}

// nextDueJob is the delayed job that is due first. Without an id, At is only a time
// before which no job is due.
type nextDueJob struct {
	ID *job.ID   `json:"id"`
	At time.Time `json:"at"`
}

// headJSON is the first of the queue's waiting jobs that need the same executors.
type headJSON struct {
	ID       job.ID   `json:"id"`
	Function string   `json:"function"`
	Count    int      `json:"count"` // number of jobs that need them, this one included
	Reasons  []reason `json:"reasons"`
}

// maxHeads is how many heads an explanation has at most.
const maxHeads = 5

func (n *Node) handleQueueExplain(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := decodeRequest[queueRequest](r)
	if err != nil {
		return nil, err
	}
	if q.Name == "" {
		return nil, &job.InvalidError{Reason: `name the queue: {"name": "<queue>"}`}
	}
	findCtx, cancel := n.findContext(ctx)
	view, ok, err := n.proposer.queue(findCtx, q.Name)
	cancel()
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, fmt.Errorf("queue %q: %w", q.Name, job.ErrQueueNotFound)
	}
	return n.explainQueue(ctx, view), nil
}

// explainQueue explains a queue that exists.
func (n *Node) explainQueue(ctx context.Context, view ledger.QueueView) *queueExplanation {
	e := &queueExplanation{Queue: queueToJSON(&view), Reasons: []reason{}, Heads: []headJSON{}, Observed: n.provenance()}
	s := n.schedulerConfig()
	e.Workers, e.Runner = s.Route(view.Name, "any")
	var heads []*diagnosis
	own := n.newDiagnosis()
	own.job.View.Queue, own.job.QueueView = view.Name, view
	n.raft.View(func(l *ledger.Ledger) { heads = n.readQueue(l, e, own) })
	var queries sync.WaitGroup
	queries.Go(func() {
		own.placement, own.noAnswer = n.explainPlacement(ctx, scheduler.PlacementQuery{Queue: view.Name})
	})
	queries.Go(func() { e.Nodes = n.queryExecutors(ctx, executorsRequest{e.Workers, e.Runner}) })
	for _, head := range heads {
		queries.Go(func() { n.queryNodes(ctx, head) })
	}
	queries.Wait()
	e.Reasons = append(e.Reasons, own.blockers()...)
	seen := map[code]bool{}
	for _, r := range e.Reasons {
		seen[r.Code] = true
	}
	for i, head := range heads {
		for _, r := range head.reasons() {
			switch {
			case seen[r.Code]: // stated for the whole queue
			case r.blocks && i == 0:
				e.Reasons = append(e.Reasons, r)
			default:
				e.Heads[i].Reasons = append(e.Heads[i].Reasons, r)
			}
		}
	}
	e.summarize(&view)
	return e
}

// readQueue reads the queue of own from l into e and own. It returns a diagnosis for
// each head.
func (n *Node) readQueue(l *ledger.Ledger, e *queueExplanation, own *diagnosis) (heads []*diagnosis) {
	name := own.job.View.Queue
	own.outboxFull = l.OutboxBytes() >= ledger.MaxOutbox/4*3
	own.holders = l.ActiveInQueue(name, maxHolders)
	e.Active = own.holderList()
	active := own.job.QueueView.Counts[job.Active]
	own.job.PausedSince, _ = l.PausedSince(name)
	e.MoreActive = max(0, active-len(e.Active))
	limit := own.job.QueueView.Config.Limit
	own.job.LimitReached = limit > 0 && active >= int(limit)
	if w, ok := l.OldestWaitingJob(name); ok {
		e.Oldest = &oldestJob{ID: w.ID, Accepted: w.Accepted.UTC(), AgeMS: max(0, own.now.Sub(w.Accepted).Milliseconds())}
	}
	if id, at, notBefore, ok := l.NextDelayed(name); ok {
		e.NextDue = &nextDueJob{ID: &id, At: at}
	} else if !notBefore.IsZero() {
		e.NextDue = &nextDueJob{At: notBefore}
	}
	for _, first := range l.WaitlistHeads(name, maxHeads) {
		head := n.newDiagnosis()
		if !head.readLedger(l, first.ID) {
			continue
		}
		heads = append(heads, head)
		e.Heads = append(e.Heads, headJSON{ID: first.ID, Function: first.Function, Count: first.Count, Reasons: []reason{}})
	}
	return heads
}

// summarize sets e.Verdict, the explanation in one sentence. Without waiting jobs it adds
// the reason that the queue is idle.
func (e *queueExplanation) summarize(view *ledger.QueueView) {
	waiting, active := view.Counts[job.Waiting], view.Counts[job.Active]
	text := ""
	for _, r := range e.Reasons {
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
		idle += e.delayedSuffix(view.Counts[job.Delayed])
		e.Reasons = append(e.Reasons, reason{Code: codeIdle, Text: idle})
		text = idle
	case waiting == 0:
		text = "nothing waits in queue " + view.Name + e.delayedSuffix(view.Counts[job.Delayed]) + "; but " + text
	case text == "":
		text = fmt.Sprintf("the jobs of queue %s start in their order: %d wait, %d run", view.Name, waiting, active)
		e.Reasons = append(e.Reasons, reason{Code: codeFlowing, Text: text})
	default:
		text = fmt.Sprintf("queue %s has %s waiting: %s", view.Name, plural(waiting, "job"), text)
	}
	e.Verdict = e.Observed.caveat(sentence(text), e.Reasons)
}

// delayedSuffix returns the end of a sentence about delayed jobs, or "".
func (e *queueExplanation) delayedSuffix(delayed int) string {
	if delayed == 0 {
		return ""
	}
	verb := "are"
	if delayed == 1 {
		verb = "is"
	}
	text := fmt.Sprintf("; %s %s due later", plural(delayed, "job"), verb)
	if d := e.NextDue; d != nil && d.ID != nil {
		text += ", the first at " + formatTime(d.At)
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
