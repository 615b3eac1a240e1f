package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"yardmaster/cluster"
	"yardmaster/job"
	"yardmaster/ledger"
	"yardmaster/scheduler"
)

// queueExplanation tells why a queue's jobs run or do not, and on whom they
// wait.
type queueExplanation struct {
	Queue      queueJSON   `json:"queue"`
	Verdict    string      `json:"verdict"`
	Reasons    []reason    `json:"reasons"` // of the queue, and of the first job that waits
	Oldest     *stood      `json:"oldest,omitempty"`
	NextDue    *dueNext    `json:"next_due,omitempty"`
	Heads      []headJSON  `json:"heads"` // the first job of each kind
	Active     []holder    `json:"active"`
	MoreActive int         `json:"more_active"`
	Workers    string      `json:"workers"` // the queue whose Overhop workers run its jobs; "": none do
	Runner     string      `json:"runner"`  // the runner that its jobs are routed to, or bare functions go to; "": none
	Nodes      []nodeHands `json:"nodes"`
	Observed   observed    `json:"observed"`
}

// stood is the waiting job that was accepted first.
type stood struct {
	ID       job.ID    `json:"id"`
	Accepted time.Time `json:"accepted_at"`
	AgeMS    int64     `json:"age_ms"`
}

// dueNext is the delayed job that is due first. Without an id, At is only a
// time before which none is due.
type dueNext struct {
	ID *job.ID   `json:"id"`
	At time.Time `json:"at"`
}

// headJSON is the first of the queue's waiting jobs that the same hands run.
type headJSON struct {
	ID       job.ID   `json:"id"`
	Function string   `json:"function"`
	Count    int      `json:"count"` // how many wait for the same hands, it included
	Reasons  []reason `json:"reasons"`
}

// maxHeads is how many kinds of jobs a queue's explanation tells of.
const maxHeads = 5

func (n *Node) handleQueueExplain(ctx context.Context, r *cluster.Request) (any, error) {
	q, err := ask[queueQuestion](r)
	if err != nil {
		return nil, err
	}
	if q.Name == "" {
		return nil, &job.InvalidError{Reason: `name the queue: {"name": "<queue>"}`}
	}
	finding, cancel := n.finding(ctx)
	view, ok, err := n.commander.queue(finding, q.Name)
	cancel()
	switch {
	case err != nil:
		return nil, err
	case !ok:
		return nil, fmt.Errorf("queue %q: %w", q.Name, job.ErrQueueNotFound)
	}
	return n.explainQueue(ctx, view), nil
}

func (n *Node) explainQueue(ctx context.Context, view ledger.QueueView) *queueExplanation {
	e := &queueExplanation{Queue: queueToJSON(&view), Reasons: []reason{}, Heads: []headJSON{}, Observed: n.observe()}
	s := n.schedulerConfig()
	e.Workers, e.Runner = s.Hands(view.Name, "any")
	var heads []*inquiry
	own := n.newInquiry()
	own.plight.View.Queue, own.plight.Line = view.Name, view
	n.raft.View(func(l *ledger.Ledger) { heads = n.lookAtQueue(l, e, own) })
	var asking sync.WaitGroup
	asking.Go(func() { own.why, own.silence = n.askWhy(ctx, scheduler.WhyQuestion{Queue: view.Name}) })
	asking.Go(func() { e.Nodes = n.askHands(ctx, handsQuestion{e.Workers, e.Runner}) })
	for _, head := range heads {
		asking.Go(func() { n.follow(ctx, head) })
	}
	asking.Wait()
	e.Reasons = append(e.Reasons, own.inTheWay()...)
	seen := map[code]bool{}
	for _, r := range e.Reasons {
		seen[r.Code] = true
	}
	for i, head := range heads {
		for _, r := range head.reasons() {
			switch {
			case seen[r.Code]: // said of the whole queue
			case r.blocks && i == 0:
				e.Reasons = append(e.Reasons, r)
			default:
				e.Heads[i].Reasons = append(e.Heads[i].Reasons, r)
			}
		}
	}
	e.conclude(&view)
	return e
}

// lookAtQueue takes what the ledger knows; the answer is an inquiry for each
// of the heads.
func (n *Node) lookAtQueue(l *ledger.Ledger, e *queueExplanation, own *inquiry) (heads []*inquiry) {
	name := own.plight.View.Queue
	own.full = l.OutboxBytes() >= ledger.MaxOutbox/4*3
	own.holders = l.Holders(name, maxHolders)
	e.Active = own.holding()
	active := own.plight.Line.Counts[job.Active]
	own.plight.Paused, _ = l.PausedSince(name)
	e.MoreActive = max(0, active-len(e.Active))
	limit := own.plight.Line.Config.Limit
	own.plight.Full = limit > 0 && active >= int(limit)
	if w, ok := l.Oldest(name); ok {
		e.Oldest = &stood{ID: w.ID, Accepted: w.Accepted.UTC(), AgeMS: max(0, own.now.Sub(w.Accepted).Milliseconds())}
	}
	if id, at, notBefore, ok := l.NextOf(name); ok {
		e.NextDue = &dueNext{ID: &id, At: at}
	} else if !notBefore.IsZero() {
		e.NextDue = &dueNext{At: notBefore}
	}
	for _, first := range l.Heads(name, maxHeads) {
		head := n.newInquiry()
		if !head.look(l, first.ID) {
			continue
		}
		heads = append(heads, head)
		e.Heads = append(e.Heads, headJSON{ID: first.ID, Function: first.Function, Count: first.Count, Reasons: []reason{}})
	}
	return heads
}

// conclude says all in one sentence. A queue in which nothing waits needs no
// reason why nothing starts.
func (e *queueExplanation) conclude(view *ledger.QueueView) {
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
		what := "nothing waits in queue " + view.Name
		if active > 0 {
			what += fmt.Sprintf(", and %d of its jobs %s", active, run(active))
		}
		what += e.later(view.Counts[job.Delayed])
		e.Reasons = append(e.Reasons, reason{Code: codeIdle, Text: what})
		text = what
	case waiting == 0:
		text = "nothing waits in queue " + view.Name + e.later(view.Counts[job.Delayed]) + "; but " + text
	case text == "":
		text = fmt.Sprintf("the jobs of queue %s are started in their turn: %d wait, %d run", view.Name, waiting, active)
		e.Reasons = append(e.Reasons, reason{Code: codeFlows, Text: text})
	default:
		text = fmt.Sprintf("queue %s has %s waiting: %s", view.Name, count(waiting, "job"), text)
	}
	e.Verdict = e.Observed.caveat(sentence(text), e.Reasons)
}

// later tells of delayed jobs, as the end of a sentence.
func (e *queueExplanation) later(delayed int) string {
	if delayed == 0 {
		return ""
	}
	verb := "are"
	if delayed == 1 {
		verb = "is"
	}
	text := fmt.Sprintf("; %s %s due later", count(delayed, "job"), verb)
	if d := e.NextDue; d != nil && d.ID != nil {
		text += ", the first at " + clock(d.At)
	}
	return text
}

// run is what so many jobs do.
func run(jobs int) string {
	if jobs == 1 {
		return "runs"
	}
	return "run"
}
